"""One workload's way from proposals to a record, in steps between which others may have their turn."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Built, Comparison, Failure, FailureKind, Measurement, Timing
from subtune.core.record import CALLS, PAIRS, Record
from subtune.database import Database
from subtune.measure import Session, halve
from subtune.measure.clock import FEW_CALLS_NOISE
from subtune.measure.halving import FULL_S, GIVE_UP, LOOK_S, ranked
from subtune.runtime.host import usable_cores
from subtune.tuning.duels import duelled
from subtune.tuning.job import Job, Step
from subtune.tuning.picks import clearly_fastest, is_cut_off, is_faster, light_first, no_default, with_least
from subtune.tuning.proposals import Proposals
from subtune.tuning.waves import TWO_WAVES, hopeful, in_turn, later_wave, unconditional

_log = logging.getLogger(__name__)

_CONFIRM_S = 2 * FULL_S
_PATIENCE_S = 0.5
"""Where time is short, so long the default may compute outputs to compare with before a workload has a record: one
input set says whether a kernel is right at all, and others want their turn."""
_PORTION = 4
"""Where time is short, so many candidates (or one for each core) are built before others have their turn."""


class WorkloadSearch:
    """The state of one workload's search: everything that was seen, and what comes next.

    `record` is the best confirmed so far; None keeps the default schedule. The outcomes alone decide, not their order.
    """

    def __init__(
        self,
        job: Job,
        proposals: Proposals,
        session: Session,
        database: Database | None = None,
        tell: Callable[[WorkloadSearch], None] = lambda _: None,
    ) -> None:
        self.job = job
        self.step, self.turns = Step.FIRST, 0
        self.site: int | None = None
        self.is_taken = False
        """It has its turn, on `site`, and is another thread's."""
        self.record: Record | None = None
        self.candidates = len(proposals.all)
        self.outcomes: dict[Candidate, Timing | Failure] = dict(proposals.known)
        self.looks: dict[Candidate, Timing] = {}
        self.default_timing: Timing | None = None
        """Of the calls that computed the reference outputs."""
        self._session, self._database, self._tell = session, database, tell
        fresh = proposals.fresh
        is_one_wave = len(fresh) < TWO_WAVES
        overlaps, tile = job.device.backend.measuring.overlaps, job.device.backend.tile
        self._waiting = list(fresh) if is_one_wave else in_turn(fresh, tile, overlaps, proposals.first)
        self._sure = len(fresh) if is_one_wave else unconditional(len(fresh), job.device.model.host.threads, overlaps)
        self._later = later_wave(len(fresh), overlaps)
        self._built: dict[Candidate, Built] = {}
        self._rough: tuple[Candidate, Comparison] | None = None
        self._hopeless = 0
        self._unsaved: set[Candidate] = set()

    # -- where it stands

    @property
    def tried(self) -> int:
        return len(self.outcomes)

    @property
    def build_s(self) -> float:  # of a candidate, on average
        return sum(built.build_s for built in self._built.values()) / max(1, len(self._built))

    @property
    def best_s(self) -> float:  # the fastest that was seen, confirmed or not
        return min((o.min_s for o in self.outcomes.values() if isinstance(o, Timing)), default=math.inf)

    @property
    def looked_s(self) -> float:  # of those timed, and not only checked
        return min((timing.min_s for timing in self.looks.values()), default=math.inf)

    @property
    def rough_gain(self) -> float:  # of the first candidate over the default, by their check; 1 where it is not known
        return self._rough[1].gain if self._rough else 1.0

    @property
    def owes_check(self) -> bool:  # of the first candidate: its outputs were compared on some of the inputs
        return self._rough is not None and self._rough[1].is_partial

    @property
    def is_sure(self) -> bool:  # of what is built next, whatever measurements say before
        return self.step == Step.FIRST or self._sure > 0

    def portion(self) -> list[Candidate]:  # what is built next
        if self.step == Step.FIRST:
            return [DEFAULT, *self._waiting[:1]]
        return self._wave() if self.step == Step.WAVE else []

    def _wave(self, begin: int = 0) -> list[Candidate]:
        count = self._sure - begin if self._sure else self._later
        if self.job.is_hurried:
            count = min(count, math.ceil(_PORTION / usable_cores()) * usable_cores())
        return self._waiting[begin : begin + count]

    # -- steps

    def take(self, site: int) -> None:
        """Its turn begins on that device, where it stays as long as that is there."""
        if self.site != site:
            self._session.move(site)
        self.site, self.is_taken = site, True

    def prefetch(self) -> None:
        self._session.prefetch(self.portion())

    def prefetch_second(self) -> None:  # what follows the first candidate, while that is built
        self._session.prefetch(self._wave(1))

    def build(self, deadline: float) -> None:
        """Build the next portion and check it: other searches' builds may run beside it."""
        if self.step == Step.FIRST:
            self._build_first(deadline)
        elif self.step == Step.WAVE:
            wanted = self.portion()
            done = self._build(wanted, deadline)
            self._waiting = [c for c in self._waiting if c not in done]
            self._sure = max(0, self._sure - len(done))
            for candidate in wanted:
                if candidate in self._built and time.monotonic() < deadline:
                    self._check(candidate, deadline)
            self._take_checked()
        self._save()

    def measure(self, deadline: float, hard: float) -> None:
        """Time what was built, for a moment or to the end: with nothing beside it where that would disturb.

        Nothing new begins after `deadline`, save the confirmation; at `hard` whatever still runs is ended.
        """
        if self.step == Step.SETTLE:
            self._settle(deadline)
        elif self.step == Step.WAVE:
            self._look(deadline)
        elif self.step == Step.FINISH:
            self._finish(deadline, hard)
            self.step = Step.DONE
        self._save()

    def _build_first(self, deadline: float) -> None:
        """The default and the first candidate that is built and computes what the default does."""
        patience_s = _PATIENCE_S if self.job.is_hurried else math.inf
        self._build([DEFAULT, *self._waiting[:1]], deadline)
        while DEFAULT in self._built and self._waiting and time.monotonic() < deadline:
            candidate = self._waiting[0]
            if not self._build([candidate], deadline):
                return
            self._waiting, self._sure = self._waiting[1:], max(0, self._sure - 1)
            if candidate in self._built and (seen := self._check(candidate, deadline, patience_s)):
                self._rough = candidate, seen
                self._take_if_clear(candidate, seen)
                break
            self._session.prefetch(self._waiting[:_PORTION])  # one fails for a reason that the next ones may share
        if DEFAULT not in self._built:
            return
        is_open = self._rough is not None and not (is_faster(self._rough[1]) and not self.owes_check)
        self.step = Step.SETTLE if is_open and self.job.is_hurried else self._after_wave()

    def _settle(self, deadline: float) -> None:
        assert self._rough is not None
        candidate, seen = self._rough
        if self.owes_check and seen.default_timing.min_s > deadline - time.monotonic():
            self.step = Step.DONE  # not another call of the default ends in time: others have the rest
            return
        if self.owes_check and (whole := self._check(candidate, deadline)):
            self._rough = candidate, whole
            self._take_if_clear(candidate, whole)
        if not (self.owes_check or is_faster(self._rough[1])):
            self._compare_first(candidate, deadline)
        if isinstance(self.outcomes.get(candidate), Failure):
            self._begin_again(candidate, seen)
        elif not self.owes_check:
            self.step = self._after_wave()

    def _begin_again(self, candidate: Candidate, seen: Comparison) -> None:
        """What was right in its first calls is wrong in others: the next candidate is the first."""
        if self._is_taken(candidate):
            self._keep_default(seen.default_timing, CALLS)
        self._rough, self.step = None, Step.FIRST

    def _compare_first(self, candidate: Candidate, deadline: float) -> None:
        seen = self._session.compare(candidate, FULL_S)
        if is_cut_off(seen, deadline):
            return
        if isinstance(seen, Failure):
            self._note(candidate, seen)
        elif is_faster(seen):
            self._decide(candidate, seen, PAIRS)
        else:
            self._keep_default(seen.default_timing, PAIRS)

    def _look(self, deadline: float) -> None:
        """A short measurement of each that was built and has had none."""
        fresh = [c for c in self._built if c != DEFAULT and c not in self.looks]
        for candidate in [c for c in fresh if not isinstance(self.outcomes.get(c), Failure)]:
            if time.monotonic() >= deadline:
                return
            seen = self._session.time(candidate, LOOK_S, GIVE_UP * self.looked_s)
            if isinstance(seen, Failure) and time.monotonic() >= deadline:
                return  # it was cut off, which says nothing about it
            self._note(candidate, seen)
            if isinstance(seen, Timing):
                self.looks[candidate] = seen
        if self.looks and self.default_timing:
            best = ranked(list(self.looks), self.looks)[0]
            timing, default = self.looks[best], self.default_timing
            self._take_if_clear(
                best, Comparison(timing, default, default.min_s / max(timing.median_s, 1e-9), FEW_CALLS_NOISE)
            )
        if not self._sure and self._waiting:
            rest = hopeful(self.looks, self._waiting, self.job.device.backend.tile)
            self._hopeless += len(self._waiting) - len(rest)
            self._waiting = rest
        self.step = self._after_wave()

    def _finish(self, deadline: float, hard: float) -> None:
        """The record of the best candidate that is sound and faster than the default, or of the default."""
        timed = [c for c in self._built if c != DEFAULT and not isinstance(self.outcomes.get(c), Failure)]
        order = halve(self._session, timed, deadline - _CONFIRM_S, self._note, self.looks)
        if not (self.job.device.backend.measuring.overlaps or self.job.is_hurried):
            order = duelled(self._session, order, self.outcomes, self._note, deadline)
        is_cut = bool(self._waiting) or self.tried + self._hopeless < self.candidates
        is_complete = not is_cut and time.monotonic() < deadline
        default: Timing | None = None
        for candidate in light_first(order, self.outcomes, self._built, self.job.device):
            seen = self._session.compare(candidate, _CONFIRM_S)
            if isinstance(seen, Failure) and time.monotonic() >= hard:
                return  # cut off, which says nothing about it
            if isinstance(seen, Failure):
                self._note(candidate, seen)
                continue
            default = seen.default_timing
            if is_faster(seen):
                self._decide(candidate, with_least(seen, self.outcomes.get(candidate)), PAIRS, is_complete)
                return
            break
        if default is None:
            timed_default = self._session.time(DEFAULT, _CONFIRM_S, math.inf)
            if isinstance(timed_default, Failure):
                if time.monotonic() >= hard:
                    return
                raise no_default(self.job.workload, timed_default, "fails")
            default = timed_default
        self._keep_default(default, PAIRS, is_complete)

    # -- what is done on the way

    def _after_wave(self) -> Step:
        return Step.WAVE if self._waiting else Step.FINISH

    def _build(self, candidates: Sequence[Candidate], deadline: float) -> set[Candidate]:
        """Those of which it is known by now whether they can be built."""
        attempts = self._session.build(candidates, deadline)
        for candidate, attempt in attempts.items():
            if isinstance(attempt, Built):
                self._built[candidate] = attempt
            elif candidate == DEFAULT:
                raise no_default(self.job.workload, attempt, "cannot be built")
            else:
                self._note(candidate, attempt)
        self._tell(self)
        return set(attempts)

    def _is_taken(self, candidate: Candidate) -> bool:
        return self.record is not None and self.record.candidate == candidate

    def _check(self, candidate: Candidate, deadline: float, patience_s: float = math.inf) -> Comparison | None:
        seen = self._session.check(candidate, patience_s)
        if is_cut_off(seen, deadline):
            return None
        if isinstance(seen, Failure):
            self._note(candidate, seen)
            return None
        self.default_timing = self.default_timing or seen.default_timing
        self._note(candidate, seen.timing)
        return seen

    def _take_if_clear(self, candidate: Candidate, seen: Comparison) -> None:
        """A few calls are enough for a record until there are more, where they leave the default far behind."""
        is_better = self.record is None or self.record.confirmed == CALLS or self.record.is_default
        if is_better and is_faster(seen):
            self._decide(candidate, seen, CALLS)

    def _take_checked(self) -> None:
        """What its check found clearly faster than the record's own, which had no more than a check: time may be up."""
        if self.record is None or self.default_timing is None:
            return
        best = clearly_fastest(self.record.candidate, self.outcomes, self._built)
        if best is not None:
            timing, default = self.outcomes[best], self.default_timing
            assert isinstance(timing, Timing)
            self._take_if_clear(best, Comparison(timing, default, default.min_s / timing.min_s, FEW_CALLS_NOISE))

    def _keep_default(self, timing: Timing, confirmed: str, is_complete: bool = False) -> None:
        self._decide(DEFAULT, Comparison(timing, timing, 1.0, 0.0), confirmed, is_complete)

    def _decide(self, winner: Candidate, seen: Comparison, confirmed: str, is_complete: bool = False) -> None:
        job = self.job
        self.record = Record(
            job.workload.key,
            job.device.scope().device,
            winner,
            seen.timing,
            seen.default_timing,
            seen.gain,
            self._built[winner].func_hash,
            job.topk,
            tried=self.tried,
            failed=sum(isinstance(outcome, Failure) for outcome in self.outcomes.values()),
            complete=is_complete,
            confirmed=confirmed,
        )
        if self._database:
            self._database.add_record(job.workload, self.record, job.device.backend.versions())

    def _note(self, candidate: Candidate, outcome: Timing | Failure) -> None:
        self.outcomes[candidate] = outcome
        self._unsaved.add(candidate)
        if isinstance(outcome, Failure):
            level = logging.WARNING if outcome.kind == FailureKind.WRONG_RESULT else logging.INFO
            _log.log(level, "%s of workload %s: %s", candidate, self.job.workload.key, outcome.message)
        self._tell(self)

    def _save(self) -> None:
        if not self._database or not self._unsaved:
            return
        measurements = [
            Measurement(candidate, outcome, self._built[candidate].build_s if candidate in self._built else 0.0)
            for candidate, outcome in self.outcomes.items()
            if candidate in self._unsaved
        ]
        self._database.add_measurements(self.job.workload, self.job.device.scope(), measurements)
        self._unsaved.clear()
