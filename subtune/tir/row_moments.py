"""A norm along rows, in two parts: numbers of every 64 columns, by whoever makes the rows; and of a row, from them.

    row_moments:  means[m, g] = mean of x[m, g * 64 : g * 64 + 64];  squares[m, g] = sum of (x - means[m, g])^2
    row_scales:   scale[m] = 1 / sqrt(variance of the row + epsilon);  shift[m] = -mean of the row * scale[m]

so that a normalised element is `x * scale + shift`. Nothing cancels that does not in the norm itself (Chan, Golub and
LeVeque: Updating formulae for computing sample variances). RMS norms count squares from zero and have no shift.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.tirx import PrimFunc

COLUMNS = 64
"""Those that have moments of their own: the width of an exchange of a kernel of Hopper's, in halves."""

MOMENTS, SCALES = "row_moments", "row_scales"
"""Names of the functions in a module; what they compute is told by their text."""


def row_moments(rows: int, columns: int, dtype: str) -> PrimFunc:
    """`x` [rows, columns] of `dtype` -> means, squares [rows, columns / 64] of float32."""
    x = te.placeholder(_wide(rows, columns), dtype, "x")
    shape = _wide(rows, columns // COLUMNS)

    def summed(name: str, term: Any) -> Any:
        axis = te.reduce_axis((0, *_wide(COLUMNS)), "c")
        return te.compute(shape, lambda m, g: te.sum(term(m, g, axis), axis=axis), name)

    def element(m: Any, g: Any, c: Any) -> Any:
        return x[m, g * COLUMNS + c].astype("float32")

    totals = summed("totals", element)
    means = te.compute(shape, lambda m, g: totals[m, g] * tirx.const(1 / COLUMNS, "float32"), "means")

    def square(m: Any, g: Any, c: Any) -> Any:
        away = element(m, g, c) - means[m, g]
        return away * away

    return te.create_prim_func([x, means, summed("squares", square)])


def row_scales(rows: int, columns: int, epsilon: float, is_centred: bool, has_shift: bool) -> PrimFunc:
    """means, squares [rows, columns / 64] of rows with `columns` -> scale [rows, 1], and shift where `has_shift`.

    Args:
        is_centred: squares are counted from the row's mean, else from zero.
    """
    groups = columns // COLUMNS
    shape = _wide(rows, 1)
    means, squares = (te.placeholder(_wide(rows, groups), "float32", name) for name in ("means", "squares"))

    def summed(name: str, term: Any) -> Any:
        axis = te.reduce_axis((0, *_wide(groups)), "g")
        return te.compute(shape, lambda m, u: te.sum(term(m, axis), axis=axis), name)

    totals = summed("totals", lambda m, g: means[m, g]) if is_centred else None

    def square(m: Any, g: Any) -> Any:
        away = means[m, g] if totals is None else means[m, g] - totals[m, 0] * tirx.const(1 / groups, "float32")
        return squares[m, g] + away * away * tirx.const(float(COLUMNS), "float32")

    spread = summed("spread", square)
    of_one = tirx.const(1 / columns, "float32")
    scale = te.compute(
        shape, lambda m, u: tirx.rsqrt(tirx.max(spread[m, u], tirx.const(0.0, "float32")) * of_one
                                           + tirx.const(epsilon, "float32")), "scale",
    )  # fmt: skip
    if totals is None or not has_shift:
        return te.create_prim_func([means, squares, scale])
    shift = te.compute(shape, lambda m, u: totals[m, u] * tirx.const(-1 / groups, "float32") * scale[m, u], "shift")
    return te.create_prim_func([means, squares, scale, shift])


def _wide(*dims: int) -> tuple[Any, ...]:
    return tuple(tirx.const(dim, "int64") for dim in dims)
