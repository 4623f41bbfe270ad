"""Reductions, arg-reductions, cumulative operators and TopK."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.movement import axes_of, slice_axis
from subtune.frontends.onnx.ops.node import (
    FLOATS,
    SIGNED,
    Converter,
    Expr,
    Node,
    axis_in,
    const,
    dtype,
    is_float,
    only_dtypes,
    rank,
    shape,
)

_INFINITY = {"int32": 0x7F800000, "int64": 0x7FF0000000000000}
"""The bits of a float's infinity; NaN has larger ones, but for the sign."""
# From which opset on the axes are an input.
_AXES_SINCE = {"ReduceSum": 13}


def _reduction(function: Callable[[Node, Expr, list[int], bool], Expr], empty: float | None) -> Converter:
    """A Reduce* operator; `empty` is its value over no elements (None: refused)."""

    def convert(node: Node) -> Expr:
        x = node.x
        axes = axes_of(node, 1, _AXES_SINCE.get(node.op, 18))
        keep = bool(node.attr("keepdims", 1))
        if not axes:
            axes = [] if node.attr("noop_with_empty_axes", 0) else list(range(rank(x)))
        axes = sorted({axis_in(a, rank(x)) for a in axes})
        dims = [1 if i in axes else d for i, d in enumerate(shape(x)) if keep or i not in axes]
        if 0 in shape(x):
            if empty is None:
                node.refuse("reduces no elements")
            fill = empty
            if np.isinf(fill) and not is_float(x):
                limits = np.iinfo(dtype(x)) if dtype(x) != "bool" else None
                fill = (fill > 0) if limits is None else (limits.max if fill > 0 else limits.min)
            return const(np.full(dims, fill), dtype(x))
        return function(node, x, axes, keep)

    return convert


def _plain(op: Callable[..., Expr]) -> Callable[[Node, Expr, list[int], bool], Expr]:
    def function(node: Node, x: Expr, axes: list[int], keep: bool) -> Expr:
        if not axes:
            return x
        narrow = dtype(x) in ("float16", "bfloat16")
        wide = node.cast(x, "float32") if narrow else x
        result = node.emit(op(wide, axis=axes, keepdims=keep))
        return node.cast(result, dtype(x))

    return function


def _composed(
    before: Callable[[Node, Expr], Expr], op: Callable[..., Expr], after: Callable[[Expr], Expr]
) -> Callable[[Node, Expr, list[int], bool], Expr]:
    """after(op(before(x))): 16-bit floats in float32, `after` of integers in float64."""

    def function(node: Node, x: Expr, axes: list[int], keep: bool) -> Expr:
        narrow = dtype(x) in ("float16", "bfloat16")
        wide = node.cast(x, "float32") if narrow else x
        wide = node.emit(before(node, wide))
        if axes:
            wide = node.emit(op(wide, axis=axes, keepdims=keep))
        if after is not _same and not is_float(wide):
            wide = node.cast(wide, "float64")
        result = wide if after is _same else node.emit(after(wide))
        return node.cast(result, dtype(x))

    return function


def _same(x: Expr) -> Expr:
    return x


def _mean(node: Node, x: Expr, axes: list[int], keep: bool) -> Expr:
    if is_float(x):
        return _plain(relax.op.mean)(node, x, axes, keep)
    total = _plain(relax.op.sum)(node, x, axes, keep)
    count = prod(shape(x)[a] for a in axes)
    mean = node.emit(relax.op.divide(node.cast(total, "float64"), const(count, "float64")))
    return node.cast(mean, dtype(x))


def _extreme(largest: bool) -> Callable[[Node, Expr, list[int], bool], Expr]:
    op = relax.op.max if largest else relax.op.min

    def function(node: Node, x: Expr, axes: list[int], keep: bool) -> Expr:
        if dtype(x) == "bool":
            return node.cast(_plain(op)(node, node.cast(x, "uint8"), axes, keep), "bool")
        return _plain(op)(node, x, axes, keep)

    return function


def _log_sum_exp(node: Node, x: Expr, axes: list[int], keep: bool) -> Expr:
    """Shifted by the maximum; an infinite maximum is not subtracted from itself."""
    wide = node.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x
    if not is_float(wide):
        node.refuse(f"takes logarithms of dtype {dtype(x)}")
    if not axes:
        return node.cast(wide, dtype(x))
    top = node.emit(relax.op.max(wide, axis=axes, keepdims=True))
    finite = node.emit(relax.op.where(relax.op.isfinite(top), top, const(0, dtype(wide))))
    total = relax.op.sum(relax.op.exp(relax.op.subtract(wide, finite)), axis=axes, keepdims=True)
    result = node.emit(relax.op.add(relax.op.log(total), finite))
    if not keep:
        result = node.emit(relax.op.squeeze(result, axis=axes))
    return node.cast(result, dtype(x))


def _floats(node: Node, x: Expr) -> Expr:
    if not is_float(x):
        node.refuse(f"takes logarithms of dtype {dtype(x)}")
    return x


def _square(node: Node, x: Expr) -> Expr:
    return relax.op.multiply(x, x)


def _abs(node: Node, x: Expr) -> Expr:
    return relax.op.abs(x)


def _ordered(node: Node, x: Expr, *, nan_is_largest: bool = True) -> Expr:
    """Integers in the order of floats `x`, both zeros equal and NaN at one end: floats with NaN have no order."""
    wide = node.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x
    integer = {"float32": "int32", "float64": "int64"}[dtype(wide)]
    end = tirx.max_value(integer) if nan_is_largest else tirx.min_value(integer)

    def key(v: Any) -> tirx.Select:
        bits, zero = tirx.reinterpret(integer, v), tirx.const(0, integer)
        # TVM makes no vectors of isnan
        is_nan = tirx.bitwise_and(bits, tirx.max_value(integer)) > tirx.const(_INFINITY[integer], integer)
        return tirx.Select(is_nan, end, tirx.Select(bits < zero, tirx.min_value(integer) - bits, bits))

    return node.te(lambda t: te.compute(t.shape, lambda *i: key(t(*i)), name="ordered"), wide)


def arg_extreme(node: Node, x: Expr, axis: int, *, largest: bool, last: bool, keep: bool = False) -> Expr:
    """The index (int64) of the extreme along `axis`; the first or the last of equals. NaN is the most extreme."""
    op = relax.op.argmax if largest else relax.op.argmin
    if is_float(x):
        x = _ordered(node, x, nan_is_largest=largest)
    if last:
        x = node.emit(relax.op.flip(x, axis))
    index = node.cast(node.emit(op(x, axis=axis, keepdims=keep)), "int64")
    return node.emit(relax.op.subtract(const(shape(x)[axis] - 1, "int64"), index)) if last else index


def arg(largest: bool) -> Converter:
    def convert(node: Node) -> Expr:
        axis = axis_in(node.attr("axis", 0), rank(node.x))
        keep, last = bool(node.attr("keepdims", 1)), bool(node.attr("select_last_index", 0))
        return arg_extreme(node, node.x, axis, largest=largest, last=last, keep=keep)

    return convert


def cumulative(product: bool) -> Converter:
    def convert(node: Node) -> Expr:
        x = node.x
        axis = axis_in(node.ints(1, "its axis")[0], rank(x))
        exclusive = bool(node.attr("exclusive", 0))
        if node.attr("reverse", 0):
            x = node.emit(relax.op.flip(x, axis))
        op = relax.op.cumprod if product else relax.op.cumsum
        result = node.emit(op(x, axis=axis, exclusive=False))
        if exclusive:
            extent = shape(x)[axis]
            dims = [1 if i == axis else d for i, d in enumerate(shape(x))]
            first = const(np.full(dims, 1 if product else 0), dtype(x))
            head = slice_axis(node, result, axis, 0, extent - 1)
            result = first if extent == 1 else node.emit(relax.op.concat([first, head], axis=axis))
        return node.emit(relax.op.flip(result, axis)) if node.attr("reverse", 0) else result

    return convert


def top_k(node: Node) -> tuple[Expr, Expr]:
    """The k largest (or smallest) along an axis, in order; of equals the first comes first. NaN is the largest."""
    x = node.x
    only_dtypes(node, x, (*FLOATS, *SIGNED, "uint8", "uint16", "uint32"))
    k = node.attr("k") if node.opset < 10 else node.ints(1, "its k")[0]
    axis = axis_in(node.attr("axis", -1), rank(x))
    largest = node.attr("largest", 1) == 1
    if not 0 < k <= shape(x)[axis]:
        node.refuse(f"takes {k} of {shape(x)[axis]}")
    if not is_float(x):
        both = node.emit(relax.op.topk(x, k=k, axis=axis, ret_type="both", largest=largest, dtype="int64"))
        return node.emit(relax.TupleGetItem(both, 0)), node.emit(relax.TupleGetItem(both, 1))
    order = _ordered(node, x)
    at = node.emit(relax.op.topk(order, k=k, axis=axis, ret_type="indices", largest=largest, dtype="int64"))
    return node.emit(relax.op.gather_elements(x, at, axis)), at


CONVERTERS: dict[str, Converter] = {
    "ReduceSum": _reduction(_plain(relax.op.sum), 0.0),
    "ReduceMean": _reduction(_mean, None),
    "ReduceProd": _reduction(_plain(relax.op.prod), 1.0),
    "ReduceMax": _reduction(_extreme(True), -np.inf),
    "ReduceMin": _reduction(_extreme(False), np.inf),
    "ReduceL1": _reduction(_composed(_abs, relax.op.sum, _same), 0.0),
    "ReduceL2": _reduction(_composed(_square, relax.op.sum, relax.op.sqrt), 0.0),
    "ReduceSumSquare": _reduction(_composed(_square, relax.op.sum, _same), 0.0),
    "ReduceLogSum": _reduction(_composed(_floats, relax.op.sum, relax.op.log), -np.inf),
    "ReduceLogSumExp": _reduction(_log_sum_exp, -np.inf),
    "ArgMax": arg(True),
    "ArgMin": arg(False),
    "CumSum": cumulative(False),
    "CumProd": cumulative(True),
    "TopK": top_k,
}
