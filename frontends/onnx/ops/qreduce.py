"""Quantised pools, means and softmax of the domain com.microsoft; see `qlinear`."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, array_const, axis_in, const, dtype, rank, shape
from subtune.frontends.onnx.ops.pool import reduced, window_counts
from subtune.frontends.onnx.ops.qlinear import Grid, grid_of, looked_up, operand, pairwise, steps_of
from subtune.frontends.onnx.ops.quantize import rounded, saturated, scaled
from subtune.frontends.onnx.ops.window import window_of


def _mean(node: Node, x: Expr, grid: Grid, result: Grid, axes: list[int], keepdims: bool = True) -> Expr:
    """round(sum(x - x_zero) * (x_scale / (y_scale * count))) + y_zero (qlgavgpool.cpp)."""
    count = prod(shape(x)[axis] for axis in axes)
    total = node.emit(relax.op.sum(node.cast(x, "int32"), axis=axes, keepdims=keepdims))
    total = node.emit(relax.op.subtract(total, const(grid.zero * count, "int32")))
    factor = steps_of(node, result.scale * np.float32(count), grid.scale)
    y = scaled(node, total, const(factor, "float32"))
    return rounded(node, y, const(result.zero, "int32"), result.dtype)


def qlinear_global_average_pool(node: Node) -> Expr:
    x, grid = operand(node, 0)
    if rank(x) < 3:
        node.refuse(f"pools rank {rank(x)}")
    first = 1 if node.attr("channels_last", 0) else 2
    return _mean(node, x, grid, grid_of(node, 3, 4, dtype(x)), list(range(first, first + rank(x) - 2)))


def qlinear_reduce_mean(node: Node) -> Expr:
    """ONNX Runtime has no kernel of it on CPUs: the mean is rounded as that of the global pool."""
    x, grid = operand(node, 0)
    axes = sorted({axis_in(axis, rank(x)) for axis in node.attr("axes") or range(rank(x))})
    return _mean(node, x, grid, grid_of(node, 3, 4, dtype(x)), axes, bool(node.attr("keepdims", 1)))


def qlinear_average_pool(node: Node) -> Expr:
    """round(sum(x_scale * (x - x_zero)) / count / y_scale + y_zero); of a whole image `_mean` (qlinear_pool.cc).

    With pads, the count is that of all taps, also of those beyond the pads in ceil mode. The sum is of float32: where a
    schedule changes its order, a result near a half may be one step off.
    """
    x, grid = operand(node, 0)
    if rank(x) < 3:
        node.refuse(f"pools rank {rank(x)}")
    result, is_last, last = grid_of(node, 3, 4, dtype(x)), node.attr("channels_last", 0), rank(x) - 1
    if is_last:
        x = node.emit(relax.op.permute_dims(x, [0, last, *range(1, last)]))
    spatial = shape(x)[2:]
    window = window_of(node, spatial, tuple(node.attr("kernel_shape") or ()))
    if window.kernel == spatial and not any((*window.before, *window.after)):
        y = _mean(node, x, grid, result, list(range(2, rank(x))))
    else:
        counts = window_counts(window, spatial, include=False)
        if node.attr("count_include_pad", 0):
            counts = np.full(window.out, prod(window.kernel))
        total = reduced(node, looked_up(node, x, grid.values), window, largest=False)
        y = _averaged(node, total, counts.astype("float32"), result)
    return node.emit(relax.op.permute_dims(y, [0, *range(2, last + 1), 1])) if is_last else y


def _averaged(node: Node, total: Expr, counts: np.ndarray, result: Grid) -> Expr:
    def mean(value: Any, count: Any, scale: Any, zero: Any) -> Any:
        return saturated(value / count / scale + zero, result.dtype)

    parameters = [const(result.scale, "float32"), const(result.zero, "float32")]
    return pairwise(node, total, array_const(counts[None, None]), parameters, mean)


def qlinear_softmax(node: Node) -> Expr:
    """round(e * floor(1 / y_scale) / sum(e)) + y_zero, e from a table of exp(x_scale * (x - max)) (qlinear_softmax.cc).

    ONNX Runtime rounds the table otherwise, as it multiplies its entries by a power of e, and adds in their order. Here
    the order is the schedule's. A result near a half may be one step off: one in 200 000 was.
    """
    x, grid = operand(node, 0)
    result, opset = grid_of(node, 3, 4, dtype(x)), node.attr("opset")
    if opset is None:
        node.refuse("lacks its attribute opset")
    axis = axis_in(node.attr("axis", 1 if opset < 13 else -1), rank(x))
    axes = [axis] if opset >= 13 else list(range(axis, rank(x)))
    powers = np.exp(-np.arange(256) * np.float64(grid.scale)).astype("float32")
    wide = node.cast(x, "int32")
    below = node.emit(relax.op.subtract(node.emit(relax.op.max(wide, axis=axes, keepdims=True)), wide))
    e = node.te(lambda t, p: te.compute(t.shape, lambda *i: p(t(*i)), name="exp"), below, array_const(powers))
    total = node.emit(relax.op.sum(e, axis=axes, keepdims=True))
    whole = const(np.floor(np.float32(1) / result.scale), "float32")
    share = node.emit(relax.op.divide(node.emit(relax.op.multiply(e, whole)), total))
    return rounded(node, share, const(result.zero, "int32"), result.dtype)


CONVERTERS: dict[str, Converter] = {
    "QLinearGlobalAveragePool": qlinear_global_average_pool,
    "QLinearReduceMean": qlinear_reduce_mean,
    "QLinearAveragePool": qlinear_average_pool,
    "QLinearSoftmax": qlinear_softmax,
}
