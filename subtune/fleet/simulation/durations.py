"""How long builds and measurements take, and how they end: drawn as a recorded run had them."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, pvariance

_POINTS = 41
"""Quantiles that are kept of a distribution, from its least to its greatest value."""
_NORMAL = NormalDist()
_EDGE = 1e-6


@dataclass(frozen=True, slots=True)
class Spread:
    """A positive quantity by its quantiles, evenly spaced; `between` is the share of the variance of its logarithm that
    lies between workloads: a workload whose builds are slow has slow ones all along."""

    quantiles: tuple[float, ...]
    between: float

    @classmethod
    def of(cls, groups: Mapping[str, Sequence[float]]) -> Spread:
        """Of what was seen of each workload; all values positive, and at least one."""
        values = sorted(value for group in groups.values() for value in group)
        steps = [index * (len(values) - 1) / (_POINTS - 1) for index in range(_POINTS)]
        logs = {key: [math.log(value) for value in group] for key, group in groups.items() if group}
        total = pvariance([one for group in logs.values() for one in group])
        several = [pvariance(group) for group in logs.values() if len(group) > 1]
        within = fmean(several) if several else total
        between = min(1.0, max(0.0, 1 - within / total)) if total > 0 else 0.0
        return cls(tuple(_at(values, step) for step in steps), round(between, 3))

    def draw(self, workload: str, occasion: str) -> float:
        """The same for the same workload and occasion, whoever asks and when."""
        common, own = _normal(workload), _normal(f"{workload}/{occasion}")
        share = _NORMAL.cdf(math.sqrt(self.between) * common + math.sqrt(1 - self.between) * own)
        return _at(self.quantiles, share * (len(self.quantiles) - 1))


@dataclass(frozen=True, slots=True)
class Durations:
    """What a recorded run says.

    Attributes:
        build_s: seconds that a builder needs for a candidate.
        call_s: seconds that a runner needs, by what it is asked for, as `called` says it.
        fails: share of all candidates that fail, by the kind of the failure.
        of_predicted: a candidate's latency over the predicted one.
        default_of_best: the default schedule's latency over that of a workload's fastest candidate.
        driver_s: CPU seconds that the driver's process needs for a candidate: messages, threads, decisions and the
            database; without finding candidates.
        wall_s: seconds of the whole run, to compare a simulation with.
    """

    build_s: Spread
    call_s: Mapping[str, Spread]
    fails: Mapping[str, float]
    of_predicted: Spread
    default_of_best: Spread
    driver_s: float
    wall_s: float

    @classmethod
    def from_json(cls, data: Mapping) -> Durations:
        def spread(one: Mapping) -> Spread:
            return Spread(tuple(one["quantiles"]), one["between"])

        return cls(
            spread(data["build_s"]),
            {key: spread(one) for key, one in data["call_s"].items()},
            data["fails"],
            spread(data["of_predicted"]),
            spread(data["default_of_best"]),
            data["driver_s"],
            data["wall_s"],
        )


def called(what: str, seconds: float) -> str:
    """A runner's call: "prepare", "check", or "time" or "compare" with the seconds of measuring that it is given."""
    return f"{what} {seconds:g}" if seconds else what


def grouped(pairs: Sequence[tuple[str, float]]) -> dict[str, list[float]]:
    """Positive values by their workloads."""
    found: dict[str, list[float]] = defaultdict(list)
    for key, value in pairs:
        if value > 0:
            found[key].append(value)
    return found


def _at(values: Sequence[float], step: float) -> float:
    low = min(int(step), len(values) - 1)
    high = min(low + 1, len(values) - 1)
    return values[low] + (step - low) * (values[high] - values[low])


def _normal(name: str) -> float:
    return _NORMAL.inv_cdf(min(1 - _EDGE, max(_EDGE, random.Random(name).random())))
