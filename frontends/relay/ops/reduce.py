"""Reductions, arg-reductions and cumulative operators."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, array_const, axis_in, const, dtype, is_float, rank, shape
from subtune.frontends.relay.fold import small
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.movement import to_shape
from subtune.frontends.relay.ops.twin import cast_to, indices


def _axes(call: Call, ndim: int) -> list[int]:
    """The axes that are reduced: all where none are named, the others with `exclude`."""
    named = call.ints("axis")
    if not named:
        if call.attr("exclude", False):
            call.refuse("excludes no axes")
        return list(range(ndim))
    at = sorted({axis_in(a, ndim) for a in named})
    return [a for a in range(ndim) if a not in at] if call.attr("exclude", False) else at


_FOLDS: dict[str, Callable[..., Any]] = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
}


def _reduction(op: str, bools: bool = False) -> Converter:
    def convert(call: Call) -> Expr:
        x = call.x
        if bools != (dtype(x) == "bool"):
            call.refuse(f"has dtype {dtype(x)}, which is not supported")
        axes = _axes(call, rank(x))
        keep = int(bool(call.attr("keepdims", False)))
        if axes and op in _FOLDS and (value := small(x)) is not None and value.size:
            return array_const(_FOLDS[op](value, axis=tuple(axes), keepdims=bool(keep)).astype(value.dtype))
        return call.onnx(op, x, indices(axes), keepdims=keep) if axes else x

    return convert


def _arg(op: str) -> Converter:
    """The position (int32) of the extreme among the reduced elements, counted in row-major order."""

    def convert(call: Call) -> Expr:
        x = call.x
        axes = _axes(call, rank(x))
        if not axes:
            call.refuse("reduces no axis")
        keep = bool(call.attr("keepdims", False))
        kept = [a for a in range(rank(x)) if a not in axes]
        dims = [1 if a in axes else d for a, d in enumerate(shape(x)) if keep or a not in axes]
        axis = axes[0]
        if len(axes) > 1:
            if [*kept, *axes] != sorted([*kept, *axes]):
                x = call.emit(relax.op.permute_dims(x, [*kept, *axes]))
            axis = len(kept)
            x = to_shape(call, x, [*shape(x)[:axis], prod(shape(x)[axis:])])
        last = int(bool(call.attr("select_last_index", False)))
        found = call.emit(call.onnx(op, x, axis=axis, keepdims=0, select_last_index=last))
        return to_shape(call, call.cast(found, "int32"), dims)

    return convert


def variance(call: Call) -> Expr:
    """The mean square of x - mean, where the second argument is the mean with its axes kept."""
    x, mean = call.arg(0), call.arg(1)
    if not is_float(x):
        call.refuse(f"has dtype {dtype(x)}, which is not supported")
    axes = _axes(call, rank(x))
    count = prod(shape(x)[a] for a in axes) - bool(call.attr("unbiased", False))
    difference = call.emit(relax.op.subtract(x, mean))
    square = call.emit(relax.op.multiply(difference, difference))
    keep = int(bool(call.attr("keepdims", False)))
    if not call.attr("unbiased", False) and axes:
        return call.onnx("ReduceMean", square, indices(axes), keepdims=keep)
    total = call.onnx("ReduceSum", square, indices(axes), keepdims=keep) if axes else square
    return relax.op.divide(total, const(count, dtype(x)))


def _cumulative(op: str) -> Converter:
    def convert(call: Call) -> Expr:
        x = cast_to(call, call.x, call.dtype(dtype(call.x)))
        x = call.emit(x)
        if call.attr("axis") is None:
            x = to_shape(call, x, [prod(shape(x))])
        axis = call.axis(rank(x), 0)
        return call.onnx(op, x, const(axis, "int64"), exclusive=int(bool(call.attr("exclusive", False))))

    return convert


CONVERTERS: dict[str, Converter] = {
    "sum": _reduction("ReduceSum"),
    "mean": _reduction("ReduceMean"),
    "prod": _reduction("ReduceProd"),
    "max": _reduction("ReduceMax"),
    "min": _reduction("ReduceMin"),
    "all": _reduction("ReduceMin", bools=True),
    "any": _reduction("ReduceMax", bools=True),
    "argmax": _arg("ArgMax"),
    "argmin": _arg("ArgMin"),
    "variance": variance,
    "cumsum": _cumulative("CumSum"),
    "cumprod": _cumulative("CumProd"),
}
