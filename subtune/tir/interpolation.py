"""Separable interpolation as tensor expressions: weighted sums over taps along one axis, or along several at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te

AXES_ATTR = "subtune.interpolation"
"""Attribute of a function (x, taps, weights of each axis, result): the axes. Its tables are `(extent, count)`."""
_TAPS_FIRST_ATTR = "subtune.interpolation.taps_first"
"""Likewise, where its tables are `(count, extent)`."""
_FUSED_AFTER = 4
"""TVM's OpPatternKind of what elementwise operators may follow, and none precede."""
_MAX_TAPS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """Weighted sums along `axis`: taps and their weights, both (extent, count)."""

    axis: int
    taps: np.ndarray
    weights: np.ndarray

    @property
    def extent(self) -> int:
        return int(self.taps.shape[0])

    @property
    def count(self) -> int:
        return int(self.taps.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Interpolation:
    """The tensor expression `te(x, *tables)`, and what its function is to say of itself."""

    te: Callable[..., Any]
    tables: tuple[np.ndarray, ...]
    attrs: dict[str, Any]


def may_go_together(one: Sum, other: Sum) -> bool:
    """Whether a sum over both axes is no more arithmetic than one after the other."""
    return one.count * other.count <= _MAX_TAPS


def interpolation(shape: Sequence[int], dtype: str, sums: Sequence[Sum], in_rows: bool) -> Interpolation:
    """Weighted sums of x, a tensor of `shape` and of float32 or float64.

    Args:
        in_rows: vectors lie along an axis of the image. Then few taps are written out, one term after the other, each a
            vector; a loop over them would be innermost, and none. Channels behind all taps are vectors in such a loop.
    """
    dims = [next((one.extent for one in sums if one.axis == a), d) for a, d in enumerate(shape)]
    counts, axes = [one.count for one in sums], [one.axis for one in sums]
    is_written_out = in_rows and math.prod(counts) <= _MAX_TAPS

    def term(t: Any, tables: Any, i: Any, ks: Any) -> Any:
        where, weight = list(i), None
        for one, k, at, by in zip(sums, ks, tables[::2], tables[1::2], strict=True):
            entry = (k, i[one.axis]) if is_written_out else (i[one.axis], k)
            where[one.axis] = at(*entry).astype("int64")
            weight = by(*entry) if weight is None else weight * by(*entry)
        return t(*where) * weight

    def written_out(t: Any, *tables: Any) -> Any:
        first, *others = np.ndindex(*counts)

        def one(*i: Any) -> Any:
            return sum((term(t, tables, i, k) for k in others), term(t, tables, i, first))

        return te.compute(dims, one, name="interpolate")

    def looped(t: Any, *tables: Any) -> Any:
        ks = [te.reduce_axis((0, one.count), name=f"k{one.axis}") for one in sums]
        return te.compute(dims, lambda *i: te.sum(term(t, tables, i, ks), axis=ks), name="interpolate")

    if not is_written_out:
        tables = [t for one in sums for t in (one.taps.astype("int64"), one.weights.astype(dtype))]
        return Interpolation(looped, tuple(tables), {AXES_ATTR: axes})
    tables = [t for one in sums for t in (one.taps.T.astype("int32"), one.weights.T.astype(dtype))]
    # no movement of data, in which others could be computed: it reads an element of its operand several times
    return Interpolation(
        written_out, tuple(tables), {AXES_ATTR: axes, _TAPS_FIRST_ATTR: True, "op_pattern": _FUSED_AFTER}
    )


def sums_of(attrs: Any, tables: Sequence[np.ndarray]) -> list[Sum]:
    """What a function with these attributes sums, from its tables."""
    turned = [table.T if _TAPS_FIRST_ATTR in attrs else table for table in tables]
    axes = [int(axis) for axis in attrs[AXES_ATTR]]
    return [Sum(axis, *pair) for axis, pair in zip(axes, zip(turned[::2], turned[1::2], strict=True), strict=True)]
