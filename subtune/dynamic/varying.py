"""Constants whose values follow from the shape: positions behind a cache, and who sees whom in a causal attention.

    positions[i] = past + i          mask[i, j] = 0 if j <= past + i else -inf

An importer computes them, as it knows all shapes, and they are others at every instance. Of some the formula is found
again, from the values at several instances; a kernel computes them in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

from subtune.core.dims import Dim
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.fit import NO_STEPS
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload

PREFIX = "made_of_shape"
"""Of the names of PrimFuncs that compute such constants."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """What computes a constant in each run, of a `table` or of nothing."""

    workload: DynamicWorkload
    table: np.ndarray | None = None


def made_of_shape(
    arrays: Sequence[np.ndarray],
    points: Sequence[Mapping[str, int]],
    greatest: Mapping[str, int],
    sums: Sequence[Dim] = (),
    steps: Mapping[str, int] = NO_STEPS,
    least: Mapping[str, int] | None = None,
) -> DynamicWorkload | None:
    """What computes a constant that has the values `arrays` at `points`; None where no formula is known.

    Args:
        greatest, sums, steps, least: as of `dynamic_workload`.
    """
    for formula in (_linear, _band):
        made = [formula(array) for array in arrays]
        found = [one for one in made if one is not None]
        if len(found) < len(arrays):
            continue
        workload = dynamic_workload(found, points, greatest, sums, steps, least)
        if not isinstance(workload, NotApplicable):
            return workload
    return None


def _linear(array: np.ndarray) -> Workload | None:
    """Whole numbers `first + step0*i0 + step1*i1 + …`."""
    if array.dtype.kind not in "iu" or not array.size:
        return None
    whole = array.astype(np.int64)
    first = int(whole.flat[0])
    steps = [int(np.take(whole, 1, axis).flat[0]) - first if n > 1 else 0 for axis, n in enumerate(array.shape)]
    grids = np.meshgrid(*map(np.arange, array.shape), indexing="ij", sparse=True)
    if not np.array_equal(
        whole, np.broadcast_to(first + sum(s * g for s, g in zip(steps, grids, strict=True)), array.shape)
    ):
        return None

    def value(*at: Any) -> Any:
        total = tirx.const(first, "int64")
        for step, index in zip(steps, at, strict=True):
            total = total + index.astype("int64") * step if step else total
        return total.astype(str(array.dtype))

    return _computed(array.shape, value)


def _band(array: np.ndarray) -> Workload | None:
    """One value in `array[.., i, j]` where `j <= i + last`, another one where not; the same along other axes."""
    if array.ndim < 2 or min(array.shape[-2:]) < 2 or any(n > 1 for n in array.shape[:-2]):
        return None
    rows: np.ndarray = array.reshape(array.shape[-2:])
    seen, hidden = rows[0, 0], rows[0, -1]
    last = int(np.count_nonzero(rows[0] == seen)) - 1
    is_seen = np.arange(rows.shape[1]) <= np.arange(rows.shape[0])[:, None] + last
    if seen == hidden or not np.array_equal(rows, np.where(is_seen, seen, hidden)):
        return None
    dtype = str(array.dtype)

    def value(*at: Any) -> Any:
        return tirx.Select(at[-1] - at[-2] <= last, tirx.const(seen.item(), dtype), tirx.const(hidden.item(), dtype))

    return _computed(array.shape, value)


def _computed(shape: Sequence[int], value: Callable[..., Any]) -> Workload:
    return Workload.of(te.create_prim_func([te.compute(tuple(shape), value, name="made")]), 1)
