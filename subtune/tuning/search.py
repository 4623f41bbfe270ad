"""The search: candidates of every distinct workload built, checked, timed and confirmed, within a time budget.

It can be stopped at any time. The candidate predicted fastest of every workload is built and checked before any
workload gets its second; then those have their turn of which most is expected for the time they take. Workloads are
searched step by step (`workload_search`), in an order that `order` gives.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.errors import DevicesLost, SubtuneError
from subtune.core.progress import ProgressCallback
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure import Measurer, given_or_local
from subtune.tuning.crew import Crew
from subtune.tuning.job import Job, Single, Step, Tunable, is_static
from subtune.tuning.order import bound_s, free_for, may_join, next_builds, next_turn, second_builds
from subtune.tuning.proposals import Policy, policy, propose
from subtune.tuning.prospects import Seen
from subtune.tuning.records import Records
from subtune.tuning.standing import standing
from subtune.tuning.threads import MACHINE, Threads
from subtune.tuning.transfer import Neighbours
from subtune.tuning.workload_search import WorkloadSearch

_log = logging.getLogger(__name__)

Worth = Callable[[Seen], Set[str]]


@dataclass(frozen=True, slots=True)
class Search:
    """What a search may do."""

    topk: int = 20
    """Candidates to consider of each workload."""
    budget_s: float | None = None
    """Wall-clock seconds from the call on; None: none but the candidates' own."""
    candidates: Policy = policy
    """Gives the candidates, best first."""
    transfer: bool = False
    """Begin with what won where workloads or devices are near, and try fewer others (`tuning.transfer`)."""


def tune_subgraph(
    workload: Workload,
    device: Device | HardwareModel,
    search: Search = Search(),  # frozen
    *,
    database: Database | None = None,
    measurer: Measurer | None = None,
    progress: ProgressCallback | None = None,
) -> Record | None:
    """The best of the candidates of `workload`, confirmed against the default schedule.

    A complete record in `database` is returned at once: no candidate runs. When the budget is spent the record is of
    what was seen, and is marked incomplete; None when nothing was confirmed by then.

    Raises:
        SubtuneError: the default schedule cannot be built or run, so there is nothing to compare with; or
            the policy fails.
        KeyboardInterrupt: the user pressed Ctrl-C; what was measured so far is in `database`.

    >>> from subtune import models
    >>> from subtune.backends import device_of
    >>> from subtune.pipeline import prepare
    >>> subgraph = prepare(models.reduced("mlp")).subgraphs[-1]
    >>> record = tune_subgraph(subgraph.workload, device_of(threads=1), Search(topk=2))
    >>> record.tried, record.complete, record.gain >= 1
    (2, True, True)
    """
    records = tune([Single(workload)], device, search, database=database, measurer=measurer, progress=progress)
    if records.interrupted:
        raise KeyboardInterrupt
    if reason := records.failures.get(workload.key):
        raise SubtuneError(reason)
    return records.get(workload.key)


def tune(
    subgraphs: Iterable[Tunable],
    device: Device | HardwareModel,
    search: Search = Search(),  # frozen
    *,
    database: Database | None = None,
    measurer: Measurer | None = None,
    progress: ProgressCallback | None = None,
    rivals: Iterable[Tunable] = (),
    later: Iterable[Tunable] = (),
    worth: Worth | None = None,
    threads: Threads = MACHINE,
) -> Records:
    """Tune every distinct workload once, within the budget.

    Ctrl-C ends the search; what was confirmed by then is returned, with `interrupted` set. Processes that are
    warm when the call begins (`measurer.start(device)`, a second before it is enough) save a short budget that second.

    Args:
        rivals: of which some are expected to take the place of some of `subgraphs`; where time is short, they join
            them when all have their first candidates.
        later: tuned in the same way, with what time is left when all of `subgraphs` are done. Where there is time,
            `rivals` are too; and both join as soon as builders would wait for work, if builds run beside measurements.
        worth: by what was seen, the keys of those of `rivals` and `later` that are worth time; asked again and again.
            None: all.
        threads: in which devices are served; a simulation has its own.
    """
    tuning = _Tuning(as_device(device), search, database, progress or (lambda _: None), worth, threads)
    return tuning.run(subgraphs, rivals, later, measurer)


class _Tuning:
    """One call of `tune`."""

    def __init__(
        self,
        device: Device,
        search: Search,
        database: Database | None,
        progress: ProgressCallback,
        worth: Worth | None,
        threads: Threads,
    ) -> None:
        self._device, self._search, self._database, self._worth = device, search, database, worth
        self._progress, self._threads, self._overlaps = progress, threads, False
        self._begin = time.monotonic()
        self._deadline = math.inf if search.budget_s is None else self._begin + search.budget_s
        self._records = Records()
        self._searches: list[WorkloadSearch] = []
        self._earlier: dict[str, float] = {}
        self._is_rebuild = False
        self._neighbours: Neighbours | None = None
        self._done = self._total = 0

    def run(
        self,
        subgraphs: Iterable[Tunable],
        rivals: Iterable[Tunable],
        later: Iterable[Tunable],
        measurer: Measurer | None,
    ) -> Records:
        parts, known = [], set()
        for part in (subgraphs, rivals, later):
            jobs = [job for job in self._jobs(part) if job.workload.key not in known]
            known |= {job.workload.key for job in jobs}
            parts.append([job for job in jobs if not self._is_finished(job)])
        self._total = len(known)
        self._done = self._total - sum(map(len, parts))
        # What an earlier compile gave up by its looks is given up again; for good, where it finished its own.
        self._is_rebuild = not parts[0]
        if self._search.transfer and self._database:
            workloads = [job.workload for jobs in parts for job in jobs]
            self._neighbours = Neighbours(self._database, self._device, workloads)
        if self._worth and self._database:
            scope = self._device.scope()
            seen = {job.workload.key: self._database.least_s(job.workload, scope) for jobs in parts for job in jobs}
            self._earlier = {key: seconds for key, seconds in seen.items() if seconds}
        if any(parts) and time.monotonic() < self._deadline:
            try:
                with given_or_local(measurer) as used:
                    used.start(self._device)
                    self._overlaps = used.overlaps(self._device)
                    first, beside, after = parts
                    if not self._is_hurried:
                        others = [*beside, *after]  # built while the last of the first are timed, if that can be
                        beside, after = (others, []) if self._overlaps else ([], others)
                    self._tune(first, beside, used)
                    self._tune([], after, used)
            except KeyboardInterrupt:
                self._records.interrupted = True
        elif self._worth:  # a rebuild
            self._worthwhile([job.workload.key for part in parts[1:] for job in part])
        return self._records

    @property
    def _is_hurried(self) -> bool:
        return not math.isinf(self._deadline)

    def _jobs(self, subgraphs: Iterable[Tunable]) -> list[Job]:
        """Distinct workloads, those first whose uses take longest even at best."""
        found: dict[str, Workload] = {}
        uses: dict[str, int] = {}
        for subgraph in subgraphs:
            workload = subgraph.workload
            if not is_static(workload):
                self._records.failures[workload.key] = "it has a symbolic dim"
                continue
            found[workload.key] = workload
            uses[workload.key] = uses.get(workload.key, 0) + subgraph.uses
        device, topk, share_s = self._device, self._search.topk, (self._deadline - self._begin) / max(1, len(found))
        jobs = [Job(one, device, topk, uses[key], bound_s(one, device), share_s) for key, one in found.items()]
        return sorted(jobs, key=lambda job: (-job.uses * job.bound_s, job.workload.key))

    def _is_finished(self, job: Job) -> bool:
        record = self._database.lookup(job.workload, self._device.scope()) if self._database else None
        if record:
            self._records[job.workload.key] = record
        return bool(record and record.complete and record.topk >= self._search.topk)

    def _tune(self, jobs: Sequence[Job], joining: Sequence[Job], measurer: Measurer) -> None:
        """Turns until all are done or the time is over. Sessions stay open meanwhile.

        Args:
            joining: what others may outrun, which waits for `jobs` (`order.may_join`).
        """
        with ExitStack() as sessions:
            searches: list[WorkloadSearch] = []
            self._searches, self._own = searches, {job.workload.key for job in jobs}
            for job in jobs:
                if found := self._begun(job, measurer, sessions):
                    searches.append(found)
                    if self._overlaps and not self._is_hurried:
                        found.prefetch_second()  # builders are many, and wait while candidates are enumerated
            for search in second_builds(searches) if self._overlaps and self._is_hurried else ():
                search.prefetch_second()  # behind the first ones of all: few workloads leave most builders idle

            def turn_on(site: int) -> list[WorkloadSearch]:
                nonlocal joining
                self._drop_outrun()
                if joining and may_join(searches, self._is_hurried):
                    wanted = self._worthwhile([job.workload.key for job in joining])
                    self._done += sum(job.workload.key not in wanted for job in joining)
                    hopeful = [job for job in joining if job.workload.key in wanted]
                    searches.extend(found for job in hopeful if (found := self._begun(job, measurer, sessions)))
                    joining = ()
                return self._turn(searches, site, measurer) if time.monotonic() < self._deadline else []

            def is_over() -> bool:
                is_left = (searches or joining) and time.monotonic() < self._deadline
                return not is_left or all(map(measurer.is_there, range(measurer.sites)))

            self._crew = Crew(measurer.sites, turn_on, is_over, self._take, measurer.interrupt, self._threads)
            self._crew.run()

    def _turn(self, searches: Sequence[WorkloadSearch], site: int, measurer: Measurer) -> list[WorkloadSearch]:
        """What is next on a device, of what others do not do."""
        sites = measurer.sites
        if sites == 1:
            return next_turn(searches, self._is_hurried, self._overlaps)
        free = free_for(site, searches, measurer.is_there)
        turn = next_turn(free, self._is_hurried, self._overlaps)
        if any(search.site is None for search in turn):  # the others want some, too
            turn = turn[:: min(sites, len(turn))]
        for search in turn:
            search.take(site)
        return turn

    def _drop_outrun(self) -> None:
        joined = [search for search in self._searches if search.job.workload.key not in self._own]
        wanted = self._worthwhile([search.job.workload.key for search in joined])
        for search in [search for search in joined if search.job.workload.key not in wanted and not search.is_taken]:
            self._searches.remove(search)
            self._done += 1

    def _worthwhile(self, keys: Sequence[str]) -> Set[str]:
        if self._worth is None or not keys:
            return set(keys)
        seconds = self._earlier | {key: record.timing.min_s for key, record in self._records.items()}
        seconds |= dict.fromkeys(self._records.failures, math.inf)
        going = {search.job.workload.key: search for search in self._searches if search.step != Step.DONE}
        seconds |= {key: search.looked_s for key, search in going.items() if not math.isinf(search.looked_s)}
        unsettled = going.keys() | (set() if self._is_rebuild else self._earlier.keys() - self._records.keys())
        wanted = self._worth(Seen(seconds, seconds.keys() - unsettled))
        self._records.outrun.update(set(keys) - wanted)
        return wanted

    def _begun(self, job: Job, measurer: Measurer, sessions: ExitStack) -> WorkloadSearch | None:
        try:
            ask = self._search.candidates
            proposals = propose(job.workload, job.device, job.topk, self._database, ask, self._neighbours)
        except SubtuneError as e:
            self._fail(job, e)
            return None
        if proposals.transferred:
            self._records.transferred[job.workload.key] = proposals.transferred
        session = sessions.enter_context(measurer.session(job.workload, job.device, self._deadline))
        search = WorkloadSearch(job, proposals, session, self._database, self._tell)
        search.prefetch()  # builders are busy while the others' candidates are enumerated
        return search

    def _take(self, turn: Sequence[WorkloadSearch], _: int) -> None:
        """One step of each: all are built, with checks beside the builds, and then all are timed.

        Where timing leaves the cores free, others are built meanwhile: what is certain to be built next.
        """
        deadline = self._deadline
        for search in turn:
            search.prefetch()
            search.turns += 1
        self._build_ahead(lambda search: search not in turn)
        for place, search in enumerate(turn):
            self._guarded(search, lambda one: one.build(deadline))
            if not self._is_hurried or place == len(turn) - 1:
                self._build_ahead(lambda one: one.is_sure and bool(one.portion()))
        for search in sorted(turn, key=lambda one: one.owes_check):  # what takes longest is last
            self._guarded(search, lambda one: one.measure(deadline, deadline))
        for search in turn:
            search.is_taken = False

    def _build_ahead(self, suits: Callable[[WorkloadSearch], bool]) -> None:
        if not self._overlaps:
            return
        with self._crew.lock:
            searches = [one for one in self._searches if not one.is_taken and suits(one)]
            for search in next_builds(searches, self._is_hurried):
                search.prefetch()

    def _guarded(self, search: WorkloadSearch, step: Callable[[WorkloadSearch], None]) -> None:
        with self._crew.lock:
            if search not in self._searches or time.monotonic() >= self._deadline:
                return
        failure: SubtuneError | None = None
        try:
            step(search)
        except DevicesLost:
            raise
        except SubtuneError as e:
            failure = e
        with self._crew.lock:
            if failure is not None:
                self._searches.remove(search)
                self._fail(search.job, failure)
            self._records.outcomes[search.job.workload.key] = search.outcomes
            if search.record:
                self._records[search.job.workload.key] = search.record
            if search.step == Step.DONE and search in self._searches:
                self._searches.remove(search)
                self._done += 1

    def _fail(self, job: Job, error: SubtuneError) -> None:
        _log.warning("workload %s keeps its default schedule: %s", job.workload.key, error)
        self._records.failures[job.workload.key] = str(error)

    def _tell(self, search: WorkloadSearch) -> None:
        with self._crew.lock:
            times = self._begin, self._deadline
            self._progress(standing(search, self._searches, self._done, self._total, times))
