"""What kernels take at instances at which they were not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from subtune.backends.many_shapes import TileShape
from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.core.domain import Domain
from subtune.dynamic.cost import MicroKernel, features, fit
from subtune.dynamic.measured import Measured
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure.messages import Library

PLAIN = TileShape()
_MOST_INSTANCES = 4096
"""Of a domain that are looked at."""


def sampled(domain: Domain) -> list[tuple[Mapping[str, int], float]]:
    """The symbols' values and their weight at all instances; of a large domain, at every so manieth, and the last."""
    step = max(1, math.ceil(domain.size / _MOST_INSTANCES))
    return [one for i, one in enumerate(domain.instances()) if i % step == 0 or i == domain.size - 1]


def instances_of(workload: DynamicWorkload, domain: Domain) -> tuple[list[Extents], np.ndarray]:
    """Distinct extents of the domain, as it is `sampled`, and their weights."""
    weights: dict[Extents, float] = {}
    for values, weight in sampled(domain):
        at = workload.extents_at(values)
        weights[at] = weights.get(at, 0.0) + weight
    ordered = sorted(weights)
    return ordered, np.array([weights[at] for at in ordered])


def predicted(
    library: Library,
    known: Mapping[Extents, float],
    instances: Sequence[Extents],
    threads: int,
    shape: TileShape = PLAIN,
) -> np.ndarray:
    """Seconds of a kernel at each instance, by the model of `cost` fitted to those that are `known`.

    A kernel that compares rows with the number that there is has tiles of `shape.rows` all the same.

    Where threads share out the tiles that vary, three take two threads as long as four. Where each goes through all of
    those, work is shared out evenly: time grows with the tiles from the first one on.
    """
    if not library.granules:
        return np.full(len(instances), float(np.median(list(known.values()))))
    if library.iterations >= 1:
        tile = MicroKernel(library.granules, workers=threads, static_tiles=round(library.iterations))
    elif library.iterations:
        tile = MicroKernel(library.granules, workers=threads, together=round(1 / library.iterations))
    else:
        granules = (shape.rows,) if library.granules == (1,) else library.granules
        step = shape.step if len(granules) == 1 else None
        tile = MicroKernel(granules, workers=1, is_shared_finely=True, step=step)
    model = fit(features(tile, np.array(list(known))), np.array(list(known.values())))
    return model.predict(features(tile, np.maximum(np.array(instances), 1)))


def times_of(found: Measured, candidate: Candidate, instances: Sequence[Extents]) -> np.ndarray:
    """Seconds at each instance, behind other kernels; infinite where the kernel does not serve it."""
    known, shape = found.seconds[candidate], found.tiles.get(candidate, PLAIN)
    times = predicted(found.libraries[candidate], known, instances, found.threads, shape) + shape.behind_s
    return np.where([found.serves(candidate, extents) for extents in instances], times, math.inf)
