"""What kernels take at instances at which they were not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from subtune.core.candidate import Candidate
from subtune.core.domain import Domain
from subtune.dynamic.kernel import tiles_of
from subtune.dynamic.measure import Extents, Measured
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure.messages import Library

_MOST_INSTANCES = 4096
"""Of a domain that are looked at."""


def instances_of(workload: DynamicWorkload, domain: Domain) -> tuple[list[Extents], np.ndarray]:
    """Distinct extents of the domain and their weights; of a large domain, of every so manieth instance."""
    step = max(1, math.ceil(domain.size / _MOST_INSTANCES))
    weights: dict[Extents, float] = {}
    for i, (values, weight) in enumerate(domain.instances()):
        if i % step == 0 or i == domain.size - 1:
            at = workload.extents_at(values)
            weights[at] = weights.get(at, 0.0) + weight
    ordered = sorted(weights)
    return ordered, np.array([weights[at] for at in ordered])


def predicted(library: Library, known: Mapping[Extents, float], instances: Sequence[Extents]) -> np.ndarray:
    """Seconds of a kernel at each instance.

    Between measured instances the seconds for an element of work, padding included, follow the logarithm of the work.
    """
    work = np.array([_work(library, extents) for extents in instances])
    points: dict[float, list[float]] = {}
    for extents, seconds in known.items():
        points.setdefault(_work(library, extents), []).append(seconds)
    sizes = sorted(points)
    rates = [math.log(float(np.median(points[size])) / size) for size in sizes]
    rate: np.ndarray = np.interp(np.log(work), np.log(sizes), rates)
    return work * np.exp(rate)


def _work(library: Library, extents: Extents) -> float:
    whole = tiles_of(extents, library.granules)
    return float(math.prod(max(1, t * g) for t, g in zip(whole, library.granules, strict=True)))


def times_of(found: Measured, candidate: Candidate, instances: Sequence[Extents]) -> np.ndarray:
    """Seconds at each instance; infinite where the kernel does not serve it."""
    times = predicted(found.libraries[candidate], found.seconds[candidate], instances)
    return np.where([found.serves(candidate, extents) for extents in instances], times, math.inf)
