"""Constants that a formula gives: a causal mask is computed where it is read, not loaded.

    mask[..., i, j] = shown where j <= i + offset, else hidden

Every exporter writes such masks out, once for each length. As a formula they cost no memory, and a kernel of attention
can see which keys no row reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

_MAX_VALUES = 2


class Triangle(NamedTuple):
    """A matrix of `shape` with `shown` where column <= row + offset, else `hidden`."""

    shape: tuple[int, int]
    offset: int
    shown: float
    hidden: float


def triangle_of(array: np.ndarray) -> Triangle | None:
    """`array`, the same for all of its leading dims, as a triangle; None where it is none."""
    if array.ndim < 2 or min(array.shape[-2:]) < 2 or not (array.dtype == bool or array.dtype.kind == "f"):
        return None
    matrices = array.reshape(-1, *array.shape[-2:])
    first, last = matrices[0, 0], matrices[0, -1]
    if len(np.unique(first)) > _MAX_VALUES or len(np.unique(last)) > _MAX_VALUES:
        return None  # weights, almost always
    shown = last[0]
    offset = int(np.argmin(first == shown)) - 1 if not (first == shown).all() else first.size - 1
    rows, columns = array.shape[-2:]
    inside = np.tri(rows, columns, offset, dtype=bool)
    hidden = matrices[0][~inside]
    if offset < 0 or not hidden.size or not inside.any():
        return None
    whole = np.where(inside, shown, hidden[0]).astype(array.dtype)
    if not (matrices == whole).all() or shown == hidden[0]:
        return None
    return Triangle((rows, columns), offset, float(shown), float(hidden[0]))


def computed(triangle: Triangle, dtype: str, emit: Callable[[Any], Any]) -> Any | None:
    """The matrix as what `emit` returns for the last of a few calls; None where neither side is zero."""
    below, after = triangle.offset, triangle.offset + 1

    def full(value: float, of: str) -> Any:
        return emit(relax.op.full(triangle.shape, relax.const(value, of), of))

    if dtype == "bool":
        ones = full(1, "int32")
        keep = relax.op.tril(ones, below) if triangle.shown else relax.op.triu(ones, after)
        return emit(relax.op.astype(emit(keep), "bool"))
    if triangle.shown and triangle.hidden:
        return None
    if not math.isfinite(triangle.shown + triangle.hidden):  # TVM 0.27 cannot lower `full` of an infinity
        is_shown = computed(triangle._replace(shown=1.0, hidden=0.0), "bool", emit)
        sides = [relax.const(value, dtype) for value in (triangle.shown, triangle.hidden)]
        return emit(relax.op.where(is_shown, *sides))
    if triangle.shown == 0:
        return emit(relax.op.triu(full(triangle.hidden, dtype), after))
    return emit(relax.op.tril(full(triangle.shown, dtype), below))
