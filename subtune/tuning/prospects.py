"""Which alternatives may still win: the others cost as much tuning as those that do, and come to nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from subtune.core.graph import LoweredAlternative, LoweredRegion

OUTRUN = "even at best slower than another way"
_LEFT = 0.8
"""Of the time of a few candidates, what the best of all takes at the least: 87 % on average after the first."""
_DOUBT = 0.6
"""Of a prediction, what the best candidate takes at the least, the partition's own having been foreseen as well."""


def total_s(one: LoweredAlternative, seconds: Mapping[str, float], between_s: float) -> float:
    """All kernels of an alternative, and what lies between them; infinity where one is missing, or it has none."""
    return in_turn_s([seconds.get(key, math.inf) for key in one.keys], between_s) if one.keys else math.inf


def in_turn_s(each_s: Sequence[float], between_s: float) -> float:
    """Kernels one after the other. What lies between two is no more than the shorter one took alone: it reads little
    that could lie in another core's cache, and its launch was measured with it."""
    return sum(each_s) + sum(min(between_s, *pair) for pair in pairwise(each_s))


@dataclass(frozen=True, slots=True)
class Seen:
    """Seconds of workloads by key: the best candidate so far, which will not change where the key is in `settled`."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    settled: Set[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Prospects:
    """What is known of the regions' alternatives before anything is measured.

    `expected` are predicted seconds of workloads by key; those without one have no candidate, and are not tuned.
    """

    regions: tuple[LoweredRegion, ...]
    expected: Mapping[str, float]
    between_s: float = 0.0

    def worth_tuning(self, seen: Seen) -> frozenset[str]:
        """Keys of all workloads of alternatives that may turn out to be the fastest of their region."""
        found: set[str] = set()
        for region in self.regions:
            fastest_s = min((self._total(one, seen.seconds) for one in region.alternatives), default=math.inf)
            error = self._error(region.alternatives[0], seen)
            for one in region.alternatives:
                if self._at_least(one, seen, error) < fastest_s or math.isinf(fastest_s):
                    found.update(one.keys)
        return frozenset(found)

    def _at_least(self, one: LoweredAlternative, seen: Seen, error: float) -> float:
        return self._total(one, {key: self._key_at_least(key, seen, error) for key in one.keys})

    def _key_at_least(self, key: str, seen: Seen, error: float) -> float:
        if key in seen.seconds:
            return seen.seconds[key] * (1.0 if key in seen.settled else _LEFT)
        return self.expected.get(key, math.inf) * error * _DOUBT

    def _error(self, own: LoweredAlternative, seen: Seen) -> float:
        """What the partition's own kernels take of what was expected of them, where that is less."""
        measured_s, expected_s = self._total(own, seen.seconds), self._total(own, self.expected)
        return min(1.0, measured_s / expected_s) if 0 < expected_s < math.inf and measured_s < math.inf else 1.0

    def _total(self, one: LoweredAlternative, seconds: Mapping[str, float]) -> float:
        return total_s(one, seconds, self.between_s)
