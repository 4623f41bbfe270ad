"""How well the policy's model of the machine foresees what is measured: rank correlation, and regret@k.

Computed from the tuning database, so from the candidates that were tried: with the default top-k of 20 nothing is known
of the 21st, and regret@20 is zero by definition unless more were tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from subtune.backends import backend_of
from subtune.core.manifest import Manifest
from subtune.core.measurement import Measurement, Timing
from subtune.core.versions import Scope
from subtune.database import Database

REGRETS = (1, 5, 20)
_LEAST = 3
"""Timed candidates of a workload; a rank correlation of two is 1 or -1 and says nothing."""


@dataclass(frozen=True, slots=True)
class WorkloadQuality:
    """One workload's candidates, best predicted first.

    Attributes:
        spearman: rank correlation of predicted and measured time, -1 to 1.
        regret: by how much the best of the first k is slower than the best of all, for each k of REGRETS; 0.1 is 10 %.
    """

    key: str
    timed: int
    spearman: float
    regret: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """Over workloads: median and mean of each figure."""

    workloads: int
    candidates: int
    spearman_median: float
    spearman_mean: float
    regret_median: tuple[float, ...]
    regret_mean: tuple[float, ...]

    def __str__(self) -> str:
        if not self.workloads:
            return f"model against measurement: no workload with {_LEAST} timed candidates"
        regrets = ", ".join(
            f"regret@{k} {a:.1%}/{b:.1%}" for k, a, b in zip(REGRETS, self.regret_median, self.regret_mean, strict=True)
        )
        return (
            f"model against measurement (median/mean of {self.workloads} workloads, {self.candidates} candidates): "
            f"rank correlation {self.spearman_median:.2f}/{self.spearman_mean:.2f}, {regrets}"
        )


def of_workloads(database: Database, keys: Iterable[str], manifest: Manifest) -> tuple[WorkloadQuality, ...]:
    """The quality of each workload that says something: keys in order, each once, those with too few left out."""
    scope = Scope(manifest.device, backend_of(manifest.kind).versions())
    found = (of_measurements(key, database.measurements(key, scope)) for key in dict.fromkeys(keys) if key)
    return tuple(one for one in found if one is not None)


def of_measurements(key: str, measurements: Sequence[Measurement]) -> WorkloadQuality | None:
    """None where too few were timed, or all were predicted alike. Candidates without a prediction were imported."""
    predicted = sorted((m for m in measurements if m.candidate.predicted_s > 0), key=lambda m: m.candidate.predicted_s)
    timed = [m for m in predicted if isinstance(m.outcome, Timing)]
    if len(timed) < _LEAST:
        return None
    guesses = _ranks([m.candidate.predicted_s for m in timed])
    truths = _ranks([_median_s(m) for m in timed])
    if np.ptp(guesses) == 0 or np.ptp(truths) == 0:
        return None
    best = min(_median_s(m) for m in timed)
    # One that failed takes its place among the first k, too. Where all of those failed, the worst is assumed.
    worst = max(_median_s(m) for m in timed)
    regret = tuple(min((_median_s(m) for m in predicted[:k] if m.is_timed), default=worst) / best - 1 for k in REGRETS)
    return WorkloadQuality(key, len(timed), float(np.corrcoef(guesses, truths)[0, 1]), regret)


def summarize(workloads: Iterable[WorkloadQuality]) -> Quality:
    """Each workload once, however many models have it."""
    distinct = list({one.key: one for one in workloads}.values())
    if not distinct:
        return Quality(0, 0, 0.0, 0.0, (0.0,) * len(REGRETS), (0.0,) * len(REGRETS))
    spearman = [one.spearman for one in distinct]
    columns = list(zip(*(one.regret for one in distinct), strict=True))
    return Quality(
        len(distinct),
        sum(one.timed for one in distinct),
        median(spearman),
        mean(spearman),
        tuple(median(column) for column in columns),
        tuple(mean(column) for column in columns),
    )


def _median_s(measurement: Measurement) -> float:
    assert isinstance(measurement.outcome, Timing)
    return measurement.outcome.median_s


def _ranks(values: Sequence[float]) -> np.ndarray:
    """1 for the least; equal values share the mean of their ranks."""
    array = np.asarray(values)
    return np.array([(array < v).sum() + ((array == v).sum() + 1) / 2 for v in array])
