"""Which alternative each region of a model takes: the fastest that was measured, and the partition's own in doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from subtune.core.graph import Alternative, Alternatives, LoweredAlternative, LoweredRegion
from subtune.core.record import Record
from subtune.tuning.prospects import OUTRUN, in_turn_s, total_s

MIN_GAIN = 1.03
"""Sums of times from different minutes differ by as much without a reason: for more kernels, less is no gain."""
_CLEARLY = 1.5
"""Predictions of two families differ by less without a reason."""


@dataclass(frozen=True, slots=True)
class MeasuredAlternative:
    """Its kernels, and their least latencies added up, in seconds, with what lies between two kernels; 0.0 if `note`
    says why there are none.

    The least, not the median: the alternatives were timed in different minutes, and what else the machine did meanwhile
    lengthens half of all samples before it lengthens the shortest.
    """

    name: str
    why: str
    kernels: tuple[str, ...]
    seconds: float
    note: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided for all regions that have the same workloads. `taken` is an index into `alternatives`."""

    regions: tuple[str, ...]
    alternatives: tuple[MeasuredAlternative, ...]
    taken: int

    @property
    def uses(self) -> int:
        return len(self.regions)

    @property
    def chosen(self) -> MeasuredAlternative:
        return self.alternatives[self.taken]

    @property
    def gain(self) -> float:
        """The partition's own latency over that of the chosen one; 1.0 where one of them was not measured."""
        own = self.alternatives[0].seconds
        return own / self.chosen.seconds if own and self.chosen.seconds else 1.0


def choose(
    alternatives: Alternatives,
    records: Mapping[str, Record],
    reasons: Mapping[str, str] | None = None,
    between_s: float = 0.0,
    expected: Mapping[str, float] | None = None,
) -> tuple[Choice, ...]:
    """The fastest alternative of every region.

    Another than the partition's own is taken only when all kernels of both were measured and it is faster, by
    `MIN_GAIN` unless it has fewer kernels; or when the partition's own was not measured: as it cannot win (`OUTRUN`),
    or as there was no time, and the other is not clearly slower than those are expected to be. Regions with the same
    workloads choose the same.

    Args:
        records: winners by workload key.
        between_s: what a kernel costs in a network and not alone, `device.between_kernels_s`.
        reasons: by workload key, why a workload has no record.
        expected: seconds of workloads without a record, by key.
    """
    # Not what was predicted of them before: a rebuild, which finds them in the database, must choose the same.
    seen = {key: record.timing.min_s for key, record in records.items()}
    alike: dict[tuple[tuple[str, ...], ...], list[LoweredRegion]] = {}
    for region in alternatives.regions:
        alike.setdefault(tuple(one.keys for one in region.alternatives), []).append(region)
    choices = []
    for regions in alike.values():
        measured = tuple(_measured(one, records, reasons or {}, between_s) for one in regions[0].alternatives)
        own = regions[0].alternatives[0]
        own_s = _foreseen_s(own, {**expected, **seen}, between_s) if expected is not None else 0.0
        if any((reasons or {}).get(key) == OUTRUN for key in own.keys):
            own_s = math.inf
        taken = _fastest(measured, own_s)
        choices.append(Choice(tuple(region.name for region in regions), measured, taken))
    return tuple(choices)


def chosen_alternatives(alternatives: Alternatives, choices: Sequence[Choice]) -> tuple[Alternative, ...]:
    """The alternatives to compute instead of the partition's own."""
    taken = {name: choice.taken for choice in choices for name in choice.regions}
    return tuple(
        region.alternatives[taken[region.name]].alternative for region in alternatives.regions if taken[region.name]
    )


def _measured(
    lowered: LoweredAlternative, records: Mapping[str, Record], reasons: Mapping[str, str], between_s: float
) -> MeasuredAlternative:
    names = tuple(group.name for group in lowered.alternative.groups)
    kernels = list(zip(lowered.keys, names, strict=False))
    missing = {key: name for key, name in kernels if key not in records}
    known = [f"{name}: {reasons[key]}" for key, name in missing.items() if key in reasons]
    notes = [lowered.refusal] if lowered.refusal else known or [f"{name}: not tuned" for name in missing.values()]
    alone = [0.0 if notes else records[key].timing.min_s for key, _ in kernels]
    seconds = 0.0 if notes else in_turn_s(alone, between_s)
    return MeasuredAlternative(
        lowered.alternative.name, lowered.alternative.why, names, seconds, notes[0] if notes else ""
    )


def _fastest(alternatives: Sequence[MeasuredAlternative], own_foreseen_s: float) -> int:
    own = alternatives[0].seconds
    measured = [index for index, alternative in enumerate(alternatives) if alternative.seconds]
    if not measured:
        return 0
    best = min(measured, key=lambda index: (alternatives[index].seconds, index))
    if not own:
        # untuned, the partition's own would ship with its default schedule
        return best if alternatives[best].seconds < _CLEARLY * own_foreseen_s else 0
    least = 1.0 if len(alternatives[best].kernels) < len(alternatives[0].kernels) else MIN_GAIN
    return best if own >= least * alternatives[best].seconds else 0


def fastest_foreseen(region: LoweredRegion, expected: Mapping[str, float], between_s: float = 0.0) -> int:
    """The alternative that is clearly the fastest by what is expected of its workloads; 0, the partition's own, in
    doubt."""
    foreseen = [_foreseen_s(one, expected, between_s) for one in region.alternatives]
    best = min(range(len(foreseen)), key=lambda index: (foreseen[index], index))
    return best if foreseen[0] >= _CLEARLY * foreseen[best] else 0


def is_in_doubt(region: LoweredRegion, expected: Mapping[str, float], between_s: float = 0.0) -> bool:
    """Whether what is expected of the partition's own, and of another alternative, is so near that measuring has to
    say."""
    own_s, *others_s = (_foreseen_s(one, expected, between_s) for one in region.alternatives)
    return min(others_s) < _CLEARLY * own_s


def foreseen_as_fast(
    region: LoweredRegion, expected: Mapping[str, float], between_s: float = 0.0
) -> tuple[LoweredAlternative, ...]:
    """The alternatives that are expected to be as fast as the partition's own."""
    own_s, *others_s = (_foreseen_s(one, expected, between_s) for one in region.alternatives)
    pairs = zip(region.alternatives[1:], others_s, strict=True)
    return tuple(one for one, seconds in pairs if seconds <= own_s and not math.isinf(seconds))


def _foreseen_s(lowered: LoweredAlternative, expected: Mapping[str, float], between_s: float) -> float:
    """Infinity where a kernel of it has no candidate, or one that nobody has predicted."""
    return total_s(lowered, {key: seconds for key, seconds in expected.items() if seconds}, between_s)
