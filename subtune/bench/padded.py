"""An artifact for one shape that serves smaller ones: inputs padded to its own, results cut to theirs."""

from __future__ import annotations

from typing import Any

import numpy as np

from subtune.bench.job import Job
from subtune.bench.peer import Arrays, Peer


def padded(job: Job, inputs: Arrays) -> Peer:
    """Each call copies the inputs into the larger ones, whose rest stays zero; results are views of the larger ones."""
    from subtune.artifact import load
    from subtune.runtime import aligned_array

    artifact = load(job.path, threads=job.threads)
    shapes = {spec.name: spec.sizes for spec in artifact.inputs}
    given, copies = dict(inputs), []
    ends: dict[tuple[int, int], int] = {}
    for name, array in inputs.items():
        ends |= {(axis, full): size for axis, (full, size) in enumerate(zip(shapes[name], array.shape, strict=True))}
        if array.shape != shapes[name]:
            whole = aligned_array(shapes[name], array.dtype, int(np.prod(shapes[name])) * array.itemsize)
            whole[...] = 0
            given[name] = whole
            copies.append((whole[tuple(slice(0, size) for size in array.shape)], array))

    def call() -> list[np.ndarray]:
        for place, array in copies:
            place[...] = array
        return [_cut(found, ends) for found in artifact.run(given).values()]

    return Peer(call)


def _cut(array: Any, ends: dict[tuple[int, int], int]) -> np.ndarray:
    """What of a result belongs to the inputs: an axis as long as a padded input's same axis ends where that does."""
    found: np.ndarray = array[tuple(slice(0, ends.get((axis, size), size)) for axis, size in enumerate(array.shape))]
    return found
