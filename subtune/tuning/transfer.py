"""What near searches tell of a workload: their winners, and how far the policy's own order was to be trusted there.

A *near search* is one of a workload that computes the same in loops of other extents, or of any such workload on
another device of the kind. Its distance is the sum of both differences (`patterns.likeness`, `Backend.distance`).
Nothing of it is trusted: what it proposes is built, checked and timed here as every candidate is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, log2

from subtune.backends.base import Device
from subtune.core.candidate import Candidate, Knob
from subtune.core.measurement import Timing
from subtune.core.record import Record
from subtune.core.versions import Scope
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.patterns.likeness import Likeness, likeness
from subtune.tuning.job import is_static

_log = logging.getLogger(__name__)

Policy = Callable[[Workload, Device, int], Sequence[Candidate]]
"""The candidates of a workload, at most so many, best first."""

FAR = 10.0
"""Doublings of loops, from which on a search tells nothing. Up to 6, half as many of ResNet-50's workloads have one of
ResNet-18's: kernels of 1 x 1 are next to those of its few strided ones."""
SOURCES = 2
"""So many of the nearest searches count. A third one's winner takes the place of one of the policy's own."""
KEPT = 1 / 2
"""Of the policy's proposals, where near searches say that those were enough: see `transferred`."""
_ENOUGH = 1.02
"""Times the winner's seconds: within this, what the policy proposed first would have done as well."""
_NEARLY = 1.2
"""Times the seconds of the fastest on another device: what may be the fastest on this one, where loops are the same."""
_LIKE = 4.0
"""Doublings by which such a device may differ: of one generation with twice as many threads, say, and other caches."""
_WIDE = 10
"""Times as many proposals, among which the likes of a winner are looked for."""
_READ = 1000
"""So many of the newest winners are looked at: to read one takes some ms."""


@dataclass(frozen=True, slots=True)
class Near:
    """A search of another workload or device: its winner, and the times of all that it tried."""

    workload: Workload
    record: Record
    distance: float
    timings: Mapping[Candidate, Timing]
    has_same_loops: bool = False
    """As the workload in question, and its device is a like one: what was fast there is not slow here."""


@dataclass(frozen=True, slots=True)
class Transferred:
    """What a search tries in the place of the policy's own proposals.

    Attributes:
        first: winners of near searches, or what comes nearest to them here.
        rest: those of the policy's proposals that are tried, too, in its order.
        full: how many candidates there would have been without.
        sources: the near searches, nearest first.
    """

    first: tuple[Candidate, ...]
    rest: tuple[Candidate, ...]
    full: int
    sources: tuple[Near, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        return (*self.first, *self.rest)


class Neighbours:
    """Near searches of some workloads, as a database holds them when this is made: what a run measures afterwards
    changes nothing of what it proposes, in whatever order its workloads have their turn.
    """

    def __init__(self, database: Database, device: Device, workloads: Iterable[Workload]) -> None:
        self._database, self._device, self._versions = database, device, device.backend.versions()
        found = self._winners()
        self._near = {one.key: self._nearest(one, found) for one in workloads} if found else {}
        self._proposed: dict[tuple[str, int], Sequence[Candidate]] = {}

    def near(self, workload: Workload) -> tuple[Near, ...]:
        """The nearest few searches, the nearest first; equally near ones by the keys of their workloads."""
        return self._near.get(workload.key, ())

    def transferred(
        self, workload: Workload, proposed: Sequence[Candidate], topk: int, ask: Policy
    ) -> Transferred | None:
        """What is tried of `workload`, where the policy has `proposed` at most `topk`; None where nothing is near."""
        near = self.near(workload)
        if not near or not proposed:
            return None

        def proposed_there(one: Near) -> Sequence[Candidate]:
            key = one.workload.key, topk
            if key not in self._proposed:  # one search is near to many
                self._proposed[key] = ask(one.workload, self._device, topk)
            return self._proposed[key]

        return transferred(proposed, ask(workload, self._device, _WIDE * topk), near, proposed_there)

    def _winners(self) -> list[tuple[Workload, Likeness, Record, float]]:
        """Those of near devices whose family is what it was, each with its device's distance.

        A default schedule is left out: it is known everywhere.
        """
        backend, own, found = self._device.backend, self._device.scope().device, []
        for record in self._database.list_records(device=f"{backend.kind}/", versions=[self._versions])[:_READ]:
            apart = inf if record.is_default else backend.distance(own, record.device)
            workload = self._database.workload(record.workload_key) if apart < FAR else None
            alike = likeness_of(workload) if workload else None
            if workload and alike:
                found.append((workload, alike, record, apart))
        return found

    def _nearest(
        self, workload: Workload, found: Iterable[tuple[Workload, Likeness, Record, float]]
    ) -> tuple[Near, ...]:
        mine = likeness_of(workload)
        if mine is None:
            return ()
        distances = [(apart + mine.distance(other), record, one, other) for one, other, record, apart in found]
        near = [one for one in distances if one[0] < FAR]
        order = sorted(near, key=lambda one: (one[0], one[1].workload_key, one[1].device))
        return tuple(
            Near(one, record, distance, self._timed(record), distance <= _LIKE and other.extents == mine.extents)
            for distance, record, one, other in order[:SOURCES]
        )

    def _timed(self, record: Record) -> Mapping[Candidate, Timing]:
        measured = self._database.measurements(record.workload_key, Scope(record.device, self._versions))
        return {one.candidate: one.outcome for one in measured if isinstance(one.outcome, Timing)}


def likeness_of(workload: Workload) -> Likeness | None:
    """None of a workload with symbolic dims, and where its program cannot be read as loops: it has no near ones."""
    if not is_static(workload):
        return None
    try:
        return likeness(workload)
    except (ValueError, TypeError, AttributeError) as e:
        _log.debug("workload %s: %s: %s", workload.key, type(e).__name__, e)
        return None


def transferred(
    proposed: Sequence[Candidate],
    wide: Sequence[Candidate],
    near: Sequence[Near],
    proposed_there: Callable[[Near], Sequence[Candidate]],
) -> Transferred:
    """The winners of `near` searches first, and fewer of the policy's own proposals.

    Where the nearest search had the same loops (the same workload on another device, or with another epilogue) and came
    to its end, what was nearly as fast as its winner is tried, fastest first: at most half of what was timed there; and
    what the policy expects to be the fastest.

    Else half of the proposals, winners included, where all of the near searches came to their end and would have lost
    no more than 2 % with the first half of what the policy proposes for their workloads; all of the proposals where
    not.

    Replayed with what ResNet-18 and ResNet-50 had measured on two threads of a Zen 4 that others used, too: of the
    second's 276 candidates 132 are tried after the first, and the sum of its kernels is 1.6 % slower; of half of the
    proposals without the winners 113, and 4.0 %. What was not measured counts as slow there. Compiled anew, kernels of
    near searches made the network 2.5 % slower, and half of the proposals alone 7 % faster: the noise of that machine.
    To order the proposals by the model's errors in near searches, as `waves.hopeful` does in one, came out worse than
    the policy's own order.

    Args:
        proposed: by the policy, best first. What it never proposes is no candidate here, whatever won elsewhere.
        wide: the same, more of them.
        proposed_there: the same as `proposed`, for the workload of one of `near`.
    """
    everything = dict.fromkeys((*proposed, *wide))
    if near[0].has_same_loops and near[0].record.complete:
        own = {candidate: candidate for candidate in everything}  # a key's value has what is predicted here
        first = tuple(own[candidate] for candidate in _fastest(near[0]) if candidate in own)
        if first:
            rest = tuple(candidate for candidate in proposed[:1] if candidate not in first)
            return Transferred(first, rest, len(proposed), tuple(near))
    winners = [adapted(one.record.candidate, tuple(everything)) for one in near]
    first = tuple(dict.fromkeys(winner for winner in winners if winner is not None))
    is_trusted = all(one.record.complete and _was_enough(one, proposed_there(one)) for one in near)
    kept = ceil(KEPT * len(proposed)) if is_trusted else len(proposed)
    others = [candidate for candidate in proposed if candidate not in first]
    return Transferred(first[:kept], tuple(others[: max(0, kept - len(first))]), len(proposed), tuple(near))


def _fastest(near: Near) -> list[Candidate]:
    """What may win on another device: the winner, which was confirmed there, and the fastest others; at most half of
    what was timed, but one at least."""
    timings, winner = near.timings, near.record.candidate
    others = sorted((timing.min_s, str(one), one) for one, timing in timings.items() if one != winner)
    least_s = min((timing.min_s for timing in timings.values()), default=0.0)
    found = [winner, *(one for seconds, _, one in others if seconds <= _NEARLY * least_s)]
    return found[: max(1, int(KEPT * len(timings)))]


def _was_enough(near: Near, proposed: Sequence[Candidate]) -> bool:
    """Whether the first half of the policy's proposals would have done there."""
    early = [near.timings[c].min_s for c in proposed[: ceil(KEPT * len(proposed))] if c in near.timings]
    best_s = min((timing.min_s for timing in near.timings.values()), default=inf)
    return min(early, default=inf) <= _ENOUGH * best_s


def adapted(winner: Candidate, proposed: Sequence[Candidate]) -> Candidate | None:
    """Of what is proposed here the candidate of the winner's family whose decisions are nearest; None: it has none.

    The family says what suits this workload: a tile that divides its loops, or has no more columns than there are.
    """
    own = [candidate for candidate in proposed if candidate.family == winner.family]
    return min(own, key=lambda candidate: _apart(candidate, winner), default=None)


def _apart(one: Candidate, other: Candidate) -> float:
    """The doublings by which numbers differ, and 1 for every other decision that does."""
    knobs, others = dict(one.knobs), dict(other.knobs)
    return sum(_differ(knobs.get(name), others.get(name)) for name in sorted(knobs.keys() | others.keys()))


def _differ(one: Knob | None, other: Knob | None) -> float:
    if one == other:
        return 0.0
    if _is_number(one) and _is_number(other):
        return abs(log2(int(one) / int(other)))  # type: ignore[arg-type]
    return 1.0


def _is_number(knob: Knob | None) -> bool:
    return isinstance(knob, int) and not isinstance(knob, bool) and knob > 0
