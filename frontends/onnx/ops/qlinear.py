"""Elementwise quantised operators of the domain com.microsoft, as ONNX Runtime's quantiser writes them (QOperator).

`ContribOperators.md` says what they mean, but not how they round. That is done as in ONNX Runtime's kernels, in float32
and in their order, so that on x86 results are the same to the bit. Scales and zero points are known at compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.core.byte_sums import rest_of_sum
from subtune.frontends.onnx.ops.node import (
    Converter,
    Expr,
    Node,
    array_const,
    axis_in,
    const,
    dtype,
    only_dtypes,
    rank,
    shape,
)
from subtune.frontends.onnx.ops.quantize import (
    BYTES,
    bounded,
    broadcast_at,
    saturated,
    scale_at,
    zero_at,
)

_MOST = 2.0**20
"""Of what a step of an input is in steps of the output: beyond it, nothing but zero and the limits comes out."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What integers stand for: scale * (value - zero)."""

    scale: np.float32
    zero: int
    dtype: str

    @property
    def values(self) -> np.ndarray:
        """What every integer of the dtype stands for, in their order."""
        limits = np.iinfo(self.dtype)
        return self.scale * (np.arange(limits.min, limits.max + 1) - self.zero).astype("float32")


def grid_of(node: Node, scale: int, zero: int, of: str) -> Grid:
    """The grid of inputs `scale` and `zero`; without the latter it is 0."""
    scale_at(node, scale)
    point = zero_at(node, zero, of)
    value = 0 if point is None else int(node.array(zero, "its zero point").reshape(()))
    return Grid(node.array(scale, "its scale").astype("float32").reshape(-1)[0], value, of)


def operand(node: Node, index: int) -> tuple[Expr, Grid]:
    """Input `index` and its grid, which are the next two."""
    x = node.need(index)
    only_dtypes(node, x, BYTES)
    return x, grid_of(node, index + 1, index + 2, dtype(x))


def _alike(node: Node, *grids: Grid) -> None:
    if len({grid.dtype for grid in grids}) > 1:
        node.refuse("mixes dtypes")


def steps_of(node: Node, unit: Any, *scales: Any) -> np.float32:
    """The product of scales in steps of another, in float32 and in their order."""
    with np.errstate(over="ignore"):
        ratio = np.multiply.reduce(np.asarray(scales, "float32"), dtype="float32") / np.float32(unit)
    if not ratio < _MOST:
        node.refuse(f"has scales too far apart, {' * '.join(f'{s:g}' for s in scales)} and {unit:g}")
    return np.float32(ratio)


def pairwise(node: Node, a: Expr, b: Expr, parameters: Sequence[Expr], of: Callable[..., Any]) -> Expr:
    """`of` every pair of elements of `a` and `b`, with numpy's broadcasting."""
    try:
        dims = np.broadcast_shapes(shape(a), shape(b))
    except ValueError:
        node.refuse(f"has shapes {list(shape(a))} and {list(shape(b))}, which do not broadcast")

    def whole(t: Any, u: Any, *scalars: Any) -> Any:
        def one(*i: Any) -> Any:
            return of(broadcast_at(t, i), broadcast_at(u, i), *(scalar() for scalar in scalars))

        return te.compute(dims, one, name="pairwise")

    return node.te(whole, a, b, *parameters)


def qlinear_add(node: Node) -> Expr:
    """round(a * ra + (b * rb + (zc - (ra * za + rb * zb)))), where ra = sa / sc and rb = sb / sc (qladd_avx2.cpp).

    Every product is added by an FMA there, and here if the target has one, as LLVM and nvcc contract. Without one, and
    on ARM, where ONNX Runtime multiplies fixed-point numbers, a result near a half may be one step off.
    """
    a, first = operand(node, 0)
    b, second = operand(node, 3)
    _alike(node, first, second)
    if shape(a)[-1:] == (1,) and shape(b)[-1:] not in ((), (1,)):
        a, first, b, second = b, second, a, first  # what is the same along a row is added first
    result = grid_of(node, 6, 7, dtype(a))
    ra, rb = (steps_of(node, result.scale, grid.scale) for grid in (first, second))
    fixed = rest_of_sum((ra, first.zero), (rb, second.zero), result.zero)

    def total(p: Any, q: Any, rp: Any, rq: Any, rest: Any) -> Any:
        return saturated(p.astype("float32") * rp + (q.astype("float32") * rq + rest), result.dtype)

    return pairwise(node, a, b, [const(v, "float32") for v in (ra, rb, fixed)], total)


def qlinear_mul(node: Node) -> Expr:
    """round((a - za) * (b - zb) * (sa * sb / sc) + zc), without an FMA (qlmul.cpp)."""
    a, first = operand(node, 0)
    b, second = operand(node, 3)
    _alike(node, first, second)
    result = grid_of(node, 6, 7, dtype(a))
    factor = steps_of(node, result.scale, first.scale, second.scale)
    zeros = [const(grid.zero, "int32") for grid in (first, second)]

    def product(p: Any, q: Any, zp: Any, zq: Any, scale: Any, zero: Any) -> Any:
        exact = (p.astype("int32") - zp) * (q.astype("int32") - zq)
        return saturated(bounded(exact.astype("float32") * scale, -_MOST, _MOST) + zero, result.dtype)

    return pairwise(node, a, b, [*zeros, const(factor, "float32"), const(result.zero, "float32")], product)


def _by_table(function: Callable[[Node, np.ndarray], np.ndarray]) -> Converter:
    """quantise(function(dequantise(x))) of all 256 values, as a table (qlinear_lookup_table.cc)."""

    def convert(node: Node) -> Expr:
        x, grid = operand(node, 0)
        result, limits = grid_of(node, 3, 4, dtype(x)), np.iinfo(dtype(x))
        with np.errstate(over="ignore"):  # saturates
            y = function(node, grid.values).astype("float32") / result.scale
        steps = np.rint(np.clip(y, -_MOST, _MOST)) + result.zero
        table = np.clip(steps, limits.min, limits.max).astype(dtype(x))
        return looked_up(node, x, table)

    return convert


def looked_up(node: Node, x: Expr, table: np.ndarray) -> Expr:
    """The entry of every element of x, in the order of its dtype's values."""
    lowest = int(np.iinfo(dtype(x)).min)

    def whole(t: Any, entries: Any) -> Any:
        return te.compute(t.shape, lambda *i: entries(t(*i).astype("int32") - lowest), name="look_up")

    return node.te(whole, x, array_const(table))


def _leaky(node: Node, x: np.ndarray) -> np.ndarray:
    return np.where(x >= 0, x, np.float32(node.attr("alpha", 0.01)) * x)


def _sigmoid(node: Node, x: np.ndarray) -> np.ndarray:
    """MLAS takes a rational approximation: an entry near a half may be one step off."""
    return 1 / (1 + np.exp(-x.astype("float64")))


def _moved(node: Node, x: Expr, grid: Grid, to: Grid) -> Expr:
    """x on another grid: round(scale * (x - zero) / new scale) + new zero (qlinear_lookup_table.cc)."""
    if grid == to:
        return x

    def whole(t: Any, zero: Any, scale: Any, new_scale: Any, new_zero: Any) -> Any:
        def one(*i: Any) -> Any:
            ratio = (t(*i).astype("int32") - zero()).astype("float32") * scale() / new_scale()
            steps = tirx.nearbyint(bounded(ratio, -_MOST, _MOST)) + new_zero()
            return saturated(steps, to.dtype)

        return te.compute(t.shape, one, name="requantise")

    parameters = [const(v, "float32") for v in (grid.scale, to.scale, to.zero)]
    return node.te(whole, x, const(grid.zero, "int32"), *parameters)


def qlinear_concat(node: Node) -> Expr:
    """Inputs: the result's scale and zero point, then every part with its own."""
    count, odd = divmod(len(node.inputs) - 2, 3)
    if count < 1 or odd:
        node.refuse(f"has {len(node.inputs)} inputs, which are not parts with their scale and zero point each")
    operands = [operand(node, 2 + 3 * i) for i in range(count)]
    result = grid_of(node, 0, 1, dtype(operands[0][0]))
    _alike(node, *(grid for _, grid in operands))
    if node.attr("axis") is None:
        node.refuse("lacks its attribute axis")
    axis = axis_in(node.attr("axis"), rank(operands[0][0]))
    return relax.op.concat([_moved(node, x, grid, result) for x, grid in operands], axis=axis)


def qlinear_where(node: Node) -> Expr:
    condition = node.need(0)
    only_dtypes(node, condition, ("bool",))
    (x, first), (y, second) = operand(node, 1), operand(node, 4)
    result = grid_of(node, 7, 8, dtype(x))
    _alike(node, first, second)
    return relax.op.where(condition, _moved(node, x, first, result), _moved(node, y, second, result))


CONVERTERS: dict[str, Converter] = {
    "QLinearAdd": qlinear_add,
    "QLinearMul": qlinear_mul,
    "QLinearSigmoid": _by_table(_sigmoid),
    "QLinearLeakyRelu": _by_table(_leaky),
    "QLinearConcat": qlinear_concat,
    "QLinearWhere": qlinear_where,
}
