"""The search: candidates of every distinct workload built, checked, timed and confirmed, within a time budget."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from subtune.backends import as_device
from subtune.backends.base import Device, HardwareModel
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure, FailureKind, Measurement, Timing
from subtune.core.progress import Progress, ProgressCallback
from subtune.core.record import Record
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.measure import Built, Comparison, LocalMeasurer, Measurer, Session, halve
from subtune.measure.halving import FULL_S, GIVE_UP, LOOK_S
from subtune.runtime.host import usable_cores

_log = logging.getLogger(__name__)

_BUILD_SHARE = 0.6
"""Of a workload's time, how much may pass before builds stop and timing begins."""
_CONFIRM_S = 2 * FULL_S
_AHEAD = 3
"""Workloads that a GPU's builders may be ahead of what is timed: the last candidates of one leave most of them idle."""
_TWO_WAVES = 8
"""So many candidates are built in two waves, the second without those that the first shows to be hopeless."""
_FIRST_WAVE = 2 / 5
_HOPE = 1.1
_HOPE_OF_TILE = 1.05
"""The same for candidates of a tile that was seen: of its error all is known but what the loops around it make."""
_NEARLY = 1.05
"""So much slower a kernel may be whose packed weights are smaller by what does not stay in L3: they take memory in
every process, and their bandwidth from the kernels beside it."""
_MIN_GAIN = 1.01
"""A winner must beat the default by this factor and by three standard errors, or the default is kept."""
_OVERCOMMIT = 2.0
"""A workload may use this many times its share of the budget: most need less than their share."""

_LEAST_S = 1.0
"""Less than this is not worth beginning with: building and checking the default schedule takes half of it."""


class Tunable(Protocol):
    """What `tune` needs to know of a subgraph."""

    @property
    def workload(self) -> Workload: ...

    @property
    def uses(self) -> int: ...


class Records(dict[str, Record]):
    """Winners by workload key. Workloads that the budget or the user cut off are missing: the default is used.

    `interrupted` says that the user ended the run (Ctrl-C); `failures` why a workload could not be tuned at all.
    """

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = False
        self.failures: dict[str, str] = {}


Candidates = Callable[[Workload, Device, int], Sequence[Candidate]]


def tune_subgraph(
    workload: Workload,
    device: Device | HardwareModel,
    *,
    topk: int = 20,
    database: Database | None = None,
    measurer: Measurer | None = None,
    deadline: float | None = None,
    progress: ProgressCallback | None = None,
    candidates: Candidates | None = None,
) -> Record | None:
    """The best of the `topk` candidates of `workload`, confirmed against the default schedule.

    A complete record in `database` is returned at once: no candidate runs. After `deadline` (a value of
    `time.monotonic()`) nothing new begins; the record is then of what was seen, and is marked incomplete.
    None when nothing was confirmed by then.

    Args:
        candidates: gives the candidates, best first (default: `subtune.backends.candidates`).

    Raises:
        SubtuneError: the default schedule cannot be built or run, so there is nothing to compare with; or
            `candidates` fails.
        KeyboardInterrupt: the user pressed Ctrl-C; what was measured so far is in `database`.

    >>> from subtune import models
    >>> from subtune.backends import device_of
    >>> from subtune.pipeline import prepare
    >>> subgraph = prepare(models.reduced("mlp")).subgraphs[-1]
    >>> record = tune_subgraph(subgraph.workload, device_of(threads=1), topk=2)
    >>> record.tried, record.complete, record.gain >= 1
    (2, True, True)
    """
    device = as_device(device)
    if database and (found := _finished(database, workload, device, topk)):
        return found
    search = _Search(workload, device, topk, database, progress or _ignore, Progress(workload.key, 0, 1, 0, 0, 0, 0))
    proposals = search.proposals(candidates or _policy)
    with nullcontext(measurer) if measurer else LocalMeasurer() as used:
        hard = math.inf if deadline is None else deadline
        return search.run(used, proposals, hard, hard)


def tune(
    subgraphs: Iterable[Tunable],
    device: Device | HardwareModel,
    *,
    topk: int = 20,
    budget_s: float | None = None,
    database: Database | None = None,
    measurer: Measurer | None = None,
    progress: ProgressCallback | None = None,
    candidates: Candidates | None = None,
    later: Iterable[Tunable] = (),
) -> Records:
    """Tune every distinct workload once, those with most time at stake first, within `budget_s` seconds.

    Ctrl-C ends the search; what was confirmed by then is returned, with `interrupted` set.

    Args:
        later: tuned in the same way, with what time is left when all of `subgraphs` are done.
    """
    device = as_device(device)
    begin = time.monotonic()
    deadline = begin + (math.inf if budget_s is None else budget_s)
    records = Records()
    stakes: dict[str, tuple[Workload, float, bool]] = {}
    for part, is_later in ((subgraphs, False), (later, True)):
        static = []
        for subgraph in part:
            if _is_static(subgraph.workload):
                static.append(subgraph)
            else:
                records.failures[subgraph.workload.key] = "it has a symbolic dim"
        for workload, stake in _stakes(static, device):
            stakes.setdefault(workload.key, (workload, stake, is_later))
    waiting: list[tuple[Workload, float, bool]] = []
    for workload, stake, is_later in stakes.values():
        found = database.lookup(workload, device.fingerprint()) if database else None
        if found:
            records[workload.key] = found
        if not (found and found.complete and found.topk >= topk):
            waiting.append((workload, stake, is_later))
    if not waiting:
        return records
    done = len(stakes) - len(waiting)
    started = time.monotonic()
    try:
        with nullcontext(measurer) if measurer else LocalMeasurer() as used:
            for index, (workload, _, is_later) in enumerate(waiting):
                now = time.monotonic()
                if now >= deadline:
                    break
                rivals = [stake for _, stake, too_late in waiting[index:] if too_late == is_later]
                soft = now + _allowance_s(deadline - now, rivals)
                # Before anything is known of the pace, only the budget bounds the time to go.
                eta = (now - started) / index * (len(waiting) - index) if index else deadline - now
                state = Progress(workload.key, done + index, len(stakes), 0, 0, math.inf, min(eta, deadline - now))
                search = _Search(workload, device, topk, database, progress or _ignore, state)
                try:
                    proposals = search.proposals(candidates or _policy)
                    following = [w for w, *_ in waiting[index + 1 : index + 1 + _AHEAD]]
                    ahead = partial(_build_ahead, used, following, device, topk, database, candidates or _policy)
                    record = search.run(used, proposals, soft, deadline, ahead)
                except SubtuneError as e:
                    _log.warning("workload %s keeps its default schedule: %s", workload.key, e)
                    records.failures[workload.key] = str(e)
                    continue
                if record:
                    records[workload.key] = record
    except KeyboardInterrupt:
        records.interrupted = True
    return records


class _Search:
    """One workload's way from proposals to a record, kept in the database step by step."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        topk: int,
        database: Database | None,
        progress: ProgressCallback,
        state: Progress,
    ) -> None:
        self._workload = workload
        self._device = device
        self._topk = topk
        self._database = database
        self._progress = progress
        self._state = replace(state, best_s=math.inf)
        self._outcomes: dict[Candidate, Timing | Failure] = {}
        self._built: dict[Candidate, Built] = {}
        self._hopeless = 0

    def proposals(self, candidates: Candidates) -> tuple[Candidate, ...]:
        """What to try, in order: an unfinished run's winner, imported candidates, then the policy's."""
        proposed: list[Candidate] = []
        if self._database:
            if found := self._database.lookup(self._workload, self._device.fingerprint()):
                proposed.append(found.candidate)
            proposed += self._database.suggestions(self._workload)
        try:
            proposed += candidates(self._workload, self._device, self._topk)
        except Exception as e:  # a policy that does not foresee a workload costs that workload its tuning, no more
            raise SubtuneError(f"no candidates for workload {self._workload.key}: {type(e).__name__}: {e}") from e
        return tuple(dict.fromkeys(c for c in proposed if c != DEFAULT))

    def fresh(self, proposals: Sequence[Candidate]) -> list[Candidate]:
        """Those of which it is not known that they fail."""
        known = self._database.known_failures(self._workload, self._device.fingerprint()) if self._database else {}
        self._outcomes.update({c: known[c] for c in proposals if c in known})
        return [c for c in proposals if c not in known]

    def run(
        self,
        measurer: Measurer,
        proposals: Sequence[Candidate],
        deadline: float,
        hard: float,
        then: Callable[[], None] = lambda: None,
    ) -> Record | None:
        """Nothing new begins after `deadline`, save the confirmation; at `hard` whatever still runs is ended.

        `then` is called when all is built, before it is timed.
        """
        begin = time.monotonic()
        if begin >= deadline:
            return None
        fresh = self.fresh(proposals)
        self._tell(len(proposals))
        with measurer.session(self._workload, self._device, hard) as session:
            try:
                build_deadline = begin + _BUILD_SHARE * (deadline - begin)
                is_one_wave = len(fresh) < _TWO_WAVES or not self._device.backend.measuring.is_prefiltered
                first, rest = (fresh, []) if is_one_wave else _waves(fresh)
                # The default comes first: without it nothing can be checked, and the record needs its hash.
                self._note_builds(attempts := session.build([DEFAULT, *first], build_deadline))
                if DEFAULT not in attempts:
                    return None
                looks = self._look(session, first, build_deadline) if rest else {}
                rest = self._worth_building(looks, rest)
                self._note_builds(session.build(rest, build_deadline) if rest else {})
                then()
                timed = [c for c in fresh if c in self._built]
                order = self._light_first(halve(session, timed, deadline - _CONFIRM_S, self._note_timing, looks))
            finally:
                self._save_measurements()
            is_cut = len(self._outcomes) + self._hopeless < len(proposals)
            return self._confirm(session, order, not is_cut and time.monotonic() < deadline, hard)

    def _look(self, session: Session, first: Sequence[Candidate], deadline: float) -> dict[Candidate, Timing]:
        """A short look at each of `first`; what fails counts as not built."""
        seen: dict[Candidate, Timing] = {}
        for candidate in first:
            if candidate not in self._built or time.monotonic() >= deadline:
                continue
            outcome = session.time(candidate, LOOK_S, GIVE_UP * min((t.min_s for t in seen.values()), default=math.inf))
            if isinstance(outcome, Timing):
                seen[candidate] = outcome
                self._note_timing(candidate, outcome)
            elif time.monotonic() < deadline:
                self._note_timing(candidate, outcome)
                self._built.pop(candidate)
        return seen

    def _worth_building(self, seen: Mapping[Candidate, Timing], rest: Sequence[Candidate]) -> list[Candidate]:
        """Of `rest` what may still win, after a short look at the first wave.

        The model's error is mostly a factor for each implementation, and more exactly for each tile. A tile's own is
        taken where it was seen; else what the better ones of its implementation have. Replayed on 3100 measured
        candidates of the zoo, that saves half of the builds, and the networks are 0.1 % slower.
        """
        if not seen or any(candidate.predicted_s <= 0 for candidate in (*seen, *rest)):
            return list(rest)
        fastest_s = min(timing.min_s for timing in seen.values())
        tiles: dict[object, float] = {}
        found: dict[object, list[float]] = {}
        for candidate, timing in seen.items():
            ratio = timing.min_s / candidate.predicted_s
            tiles[candidate.tile] = min(ratio, tiles.get(candidate.tile, math.inf))
            found.setdefault((candidate.family, candidate.is_serial), []).append(ratio)
        factors = {kind: sorted(ratios)[len(ratios) // 4] for kind, ratios in found.items()}
        unseen = min(factors.values())

        def may_win(candidate: Candidate) -> bool:
            if candidate.tile in tiles:
                return candidate.predicted_s * tiles[candidate.tile] <= _HOPE_OF_TILE * fastest_s
            factor = factors.get((candidate.family, candidate.is_serial), unseen)
            return candidate.predicted_s * factor <= _HOPE * fastest_s

        hopeful = [candidate for candidate in rest if may_win(candidate)]
        self._hopeless = len(rest) - len(hopeful)
        _log.info("workload %s: %d of %d candidates cannot win", self._workload.key, self._hopeless, len(rest))
        return hopeful

    def _light_first(self, order: list[Candidate]) -> list[Candidate]:
        """`order`, but first what is nearly as fast as the fastest and needs megabytes less of weights."""
        if not order:
            return order

        def seconds(candidate: Candidate) -> float:
            outcome = self._outcomes.get(candidate)
            return outcome.min_s if isinstance(outcome, Timing) else math.inf

        near = [c for c in order if seconds(c) <= _NEARLY * seconds(order[0])]
        light = min(near, key=lambda c: self._built[c].weights_bytes, default=order[0])
        saved = self._built[order[0]].weights_bytes - self._built[light].weights_bytes
        if not self._device.model.comes_from_memory(saved):
            return order
        return [light, *(c for c in order if c != light)]

    def _confirm(self, session: Session, order: Sequence[Candidate], complete: bool, hard: float) -> Record | None:
        """The record of the first candidate in `order` that is sound and faster than the default, or of the default."""
        default_timing: Timing | None = None
        for candidate in order:
            outcome = session.compare(candidate, _CONFIRM_S)
            if isinstance(outcome, Failure):
                self._outcomes[candidate] = outcome
                self._save_measurements()
                continue
            default_timing = outcome.default_timing
            if _is_faster(outcome):
                return self._record(
                    candidate, self._with_least(candidate, outcome.timing), default_timing, outcome.gain, complete
                )
            break
        if default_timing is None:
            timed = session.time(DEFAULT, _CONFIRM_S, math.inf)
            if isinstance(timed, Failure) and time.monotonic() >= hard:
                return None  # cut off, which says nothing about it
            if isinstance(timed, Failure):
                raise SubtuneError(
                    f"the default schedule of workload {self._workload.key} fails ({timed.kind}): {timed.message}"
                )
            default_timing = timed
        return self._record(DEFAULT, default_timing, default_timing, 1.0, complete)

    def _with_least(self, candidate: Candidate, timing: Timing) -> Timing:
        """`timing` with the least of all samples: beside the default, a kernel finds the caches as that left them."""
        earlier = self._outcomes.get(candidate)
        if not isinstance(earlier, Timing):
            return timing
        return replace(timing, min_s=min(timing.min_s, earlier.min_s))

    def _record(self, winner: Candidate, timing: Timing, default: Timing, gain: float, complete: bool) -> Record:
        record = Record(
            self._workload.key,
            self._device.fingerprint(),
            winner,
            timing,
            default,
            gain,
            self._built[winner].func_hash,
            self._topk,
            tried=len(self._outcomes),
            failed=sum(isinstance(outcome, Failure) for outcome in self._outcomes.values()),
            complete=complete,
        )
        if self._database:
            self._database.add_record(self._workload, record)
        return record

    def _note_builds(self, attempts: dict[Candidate, Built | Failure]) -> None:
        for candidate, attempt in attempts.items():
            if isinstance(attempt, Built):
                self._built[candidate] = attempt
            elif candidate == DEFAULT:
                raise SubtuneError(
                    f"the default schedule of workload {self._workload.key} cannot be built "
                    f"({attempt.kind}): {attempt.message}"
                )
            else:
                self._outcomes[candidate] = attempt
        self._tell()

    def _note_timing(self, candidate: Candidate, outcome: Timing | Failure) -> None:
        self._outcomes[candidate] = outcome
        if isinstance(outcome, Failure):
            level = logging.WARNING if outcome.kind == FailureKind.WRONG_RESULT else logging.INFO
            _log.log(level, "%s of workload %s: %s", candidate, self._workload.key, outcome.message)
        self._tell()

    def _tell(self, candidates: int | None = None) -> None:
        times = [outcome.median_s for outcome in self._outcomes.values() if isinstance(outcome, Timing)]
        self._state = replace(
            self._state,
            tried=len(self._outcomes),
            candidates=self._state.candidates if candidates is None else candidates,
            best_s=min(times, default=math.inf),
        )
        self._progress(self._state)

    def _save_measurements(self) -> None:
        if not self._database or not self._outcomes:
            return
        measurements = [
            Measurement(candidate, outcome, self._built[candidate].build_s if candidate in self._built else 0.0)
            for candidate, outcome in self._outcomes.items()
        ]
        self._database.add_measurements(self._workload, self._device.fingerprint(), measurements)


def _waves(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """What to build at first, and what then if it may still win.

    The first of every tile come first: another tile tells more than other loops around the same. Beside the default
    they are so many that no core is idle at the end.
    """
    heads: dict[object, Candidate] = {}
    for candidate in candidates:
        heads.setdefault(candidate.tile, candidate)
    in_turn = [*heads.values(), *(c for c in candidates if c is not heads[c.tile])]
    cores = usable_cores()
    builds = math.ceil((1 + _FIRST_WAVE * len(candidates)) / cores) * cores
    return in_turn[: builds - 1], in_turn[builds - 1 :]


def _build_ahead(
    measurer: Measurer,
    following: Sequence[Workload],
    device: Device,
    topk: int,
    database: Database | None,
    candidates: Candidates,
) -> None:
    """Let the next workloads be built while this one is timed, which on a GPU takes none of the host's cores."""
    if not device.backend.measuring.overlaps or not isinstance(measurer, LocalMeasurer):
        return
    for workload in following:
        if measurer.is_ahead(workload, device):
            continue
        search = _Search(workload, device, topk, database, _ignore, Progress(workload.key, 0, 1, 0, 0, 0, 0))
        try:
            proposals = search.fresh(search.proposals(candidates))
        except SubtuneError:
            return  # said when its turn comes
        measurer.prefetch(workload, device, proposals)


def _allowance_s(left_s: float, stakes: Sequence[float]) -> float:
    """Of `left_s` seconds what the first of the waiting workloads may use, by its part of all their `stakes`."""
    if math.isinf(left_s) or len(stakes) == 1:
        return left_s
    share = _OVERCOMMIT * stakes[0] / max(sum(stakes), 1e-30)
    return min(left_s, max(share * left_s, _LEAST_S))


def _is_faster(comparison: Comparison) -> bool:
    return comparison.gain > max(_MIN_GAIN, math.exp(3 * comparison.noise))


def _finished(database: Database, workload: Workload, device: Device, topk: int) -> Record | None:
    found = database.lookup(workload, device.fingerprint())
    return found if found and found.complete and found.topk >= topk else None


def _stakes(subgraphs: Iterable[Tunable], device: Device) -> list[tuple[Workload, float]]:
    """Distinct workloads with the seconds that all their uses take at best, most first."""
    workloads: dict[str, Workload] = {}
    stakes: dict[str, float] = {}
    for subgraph in subgraphs:
        workload = subgraph.workload
        if workload.key not in workloads:
            workloads[workload.key] = workload
            stakes[workload.key] = 0.0
        stakes[workload.key] += subgraph.uses * _bound_s(workload, device)
    order = sorted(workloads, key=lambda key: (-stakes[key], key))
    return [(workloads[key], stakes[key]) for key in order]


def _bound_s(workload: Workload, device: Device) -> float:
    """The roofline: a workload takes at least the time of its arithmetic and that of its bytes."""
    try:
        flops = workload.flops
    except Exception as e:  # TVM counts no operations of a loop whose extent is data, for one
        _log.debug("operations of workload %s: %s", workload.key, e)
        flops = 0
    return max(flops / device.model.peak_flops(), workload.nbytes / device.model.dram_bytes_per_s)


def _is_static(workload: Workload) -> bool:
    return all(isinstance(dim, int) for arg in workload.args for dim in arg.shape)


def _policy(workload: Workload, device: Device, topk: int) -> Sequence[Candidate]:
    from subtune.backends import candidates  # type: ignore[attr-defined]

    found: Any = candidates(workload, device, topk)
    return tuple(found)


def _ignore(progress: Progress) -> None:
    """For callers that do not want to know."""
