"""Pooling."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, const, dtype, is_float, rank, shape
from subtune.frontends.onnx.ops.window import Window, window_of
from subtune.tir.expressions import lowest, maximum_over

_MAX = {4: relax.op.nn.max_pool2d, 5: relax.op.nn.max_pool3d}
_MEAN = {4: relax.op.nn.avg_pool2d, 5: relax.op.nn.avg_pool3d}


def _window(node: Node) -> Window:
    return window_of(node, shape(node.x)[2:], tuple(node.attr("kernel_shape")))


def reduced(node: Node, x: Expr, window: Window, *, largest: bool, power: int = 1) -> Expr:
    """The maximum, or the sum of |v|**power (v for power 1), over every window; pads do not count."""
    spatial = shape(x)[2:]
    wide = dtype(x) if not is_float(x) or dtype(x) in ("float32", "float64") else "float32"

    def whole(t: Any) -> Any:
        taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(window.kernel)]
        neutral = lowest(wide) if largest else tirx.const(0, wide)

        def one(n: Any, c: Any, *at: Any) -> Any:
            index, inside = [], []
            for i, y in enumerate(at):
                index.append(y * window.strides[i] + taps[i] * window.dilations[i] - window.before[i])
                if window.padding[i] or window.padding[len(spatial) + i]:
                    inside += [index[-1] >= 0, index[-1] < spatial[i]]
            value = t(n, c, *index).astype(wide)
            if power > 1:
                value = _power(value, power)
            elif power == 1 and node.op in ("LpPool", "GlobalLpPool"):
                value = tirx.abs(value)
            if inside:
                value = tirx.if_then_else(tirx.all(*inside), value, neutral)
            return maximum_over(value, taps) if largest else te.sum(value, axis=taps)

        return te.compute((*shape(x)[:2], *window.out), one, name="pool")

    return node.te(whole, x)


def _power(value: Any, power: int) -> Any:
    magnitude = value if power % 2 == 0 else tirx.abs(value)
    result = magnitude
    for _ in range(power - 1):
        result = result * magnitude
    return result


def _image(node: Node, x: Expr) -> Expr:
    """[n, c, x] as [n, c, 1, x], a view: whatever is done for pools of images is done for those of rows."""
    batch, channels, extent = shape(x)
    return node.emit(relax.op.reshape(x, (batch, channels, 1, extent)))


def _row(node: Node, x: Expr) -> Expr:
    """The way back."""
    x = node.emit(x)
    batch, channels, _, extent = shape(x)
    return node.emit(relax.op.reshape(x, (batch, channels, extent)))


def max_pool(node: Node) -> Expr | tuple[Expr, ...]:
    x = node.x
    window = _window(node)
    if node.wants(1):
        return _with_indices(node, x, window.trimmed(shape(x)[2:]))
    return maximum(node, x, window)


def maximum(node: Node, x: Expr, window: Window) -> Expr:
    """The maximum of every window; pads do not count."""
    if rank(x) == 3:
        return _row(node, maximum(node, _image(node, x), window.along(None, 0)))
    window = window.trimmed(shape(x)[2:])
    if rank(x) in _MAX and dtype(x) in ("float32", "float64", "float16"):
        return _MAX[rank(x)](x, window.kernel, window.strides, window.padding, window.dilations, ceil_mode=False)
    return reduced(node, x, window, largest=True)


def _with_indices(node: Node, x: Expr, window: Window) -> tuple[Expr, Expr]:
    """Maxima and where they lie: flat indices into the whole tensor, the first of equals."""
    dims = shape(x)
    spatial = dims[2:]
    taps_shape = window.kernel

    def whole(t: Any) -> Any:
        k = te.reduce_axis((0, prod(taps_shape)), name="k")

        def combine(a: Any, b: Any) -> Any:
            keep = tirx.any(a[1] > b[1], tirx.all(a[1] == b[1], a[0] <= b[0]))
            if is_float(x):  # the first NaN is the largest
                keep = tirx.any(keep, tirx.isnan(a[1].astype("float32")))
            return tirx.Select(keep, a[0], b[0]), tirx.Select(keep, a[1], b[1])

        def identity(index_dtype: Any, value_dtype: Any) -> Any:
            return tirx.max_value("int64"), lowest(value_dtype)

        reducer = te.comm_reducer(combine, identity, name="first_max")

        def one(n: Any, c: Any, *at: Any) -> Any:
            rest: Any = k
            taps: list[Any] = []
            for extent in reversed(taps_shape):
                taps.insert(0, tirx.floormod(rest, extent))
                rest = tirx.floordiv(rest, extent)
            index = [
                y * s + tap * d - b
                for y, s, tap, d, b in zip(at, window.strides, taps, window.dilations, window.before, strict=True)
            ]
            inside = [cond for i, e in zip(index, spatial, strict=True) for cond in (i >= 0, i < e)]
            order = range(len(index))
            flat: Any = n * dims[1] + c
            strides = _strides(spatial, bool(node.attr("storage_order", 0)))
            flat = flat * prod(spatial)
            for i in order:
                flat = flat + index[i] * strides[i]
            valid = tirx.all(*inside)
            where = tirx.if_then_else(valid, tirx.Cast("int64", flat), tirx.max_value("int64"))
            value = tirx.if_then_else(valid, t(n, c, *index), lowest(dtype(x)))
            return reducer((where, value), axis=k)

        at, best = te.compute((*dims[:2], *window.out), one, name="max_pool")
        return [best, at]

    both = node.te(whole, x)
    return node.emit(relax.TupleGetItem(both, 0)), node.emit(relax.TupleGetItem(both, 1))


def _strides(spatial: tuple[int, ...], column_major: bool) -> list[int]:
    if column_major:
        return [prod(spatial[:i]) for i in range(len(spatial))]
    return [prod(spatial[i + 1 :]) for i in range(len(spatial))]


def average_pool(node: Node) -> Expr:
    """The mean of each window; pads count if count_include_pad, what lies beyond them in ceil mode never."""
    return average(node, node.x, _window(node), bool(node.attr("count_include_pad", 0)))


def average(node: Node, x: Expr, window: Window, include: bool) -> Expr:
    """The mean of each window, pads included or not; 0 where a window has nothing that counts."""
    if rank(x) == 3:
        return _row(node, average(node, _image(node, x), window.along(None, 0), include))
    spatial = shape(x)[2:]
    counts = window_counts(window, spatial, include)
    window = window.trimmed(spatial)
    plain = all(d == 1 for d in window.dilations)
    if rank(x) in _MEAN and plain and dtype(x) in ("float32", "float64"):
        ones = (1,) * len(spatial)
        mean = _MEAN[rank(x)](
            x, window.kernel, window.strides, window.padding, ones, ceil_mode=False, count_include_pad=include
        )
        # With its pads a window is divided by the size of all its taps, also of those beyond what counts.
        share = prod(window.kernel) / counts
        if not include or (share == 1).all():
            return mean
        return relax.op.multiply(node.emit(mean), const(share[None, None], dtype(x)))
    total = reduced(node, x, window, largest=False)
    mean = node.emit(relax.op.divide(total, const(counts[None, None], dtype(total))))
    return node.cast(mean, dtype(x))


def window_counts(window: Window, spatial: tuple[int, ...], include: bool) -> np.ndarray:
    """How many positions of every window count."""
    per_axis = []
    for i, extent in enumerate(spatial):
        low = -window.before[i] if include else 0
        high = extent + window.after[i] if include else extent
        starts = np.arange(window.out[i]) * window.strides[i] - window.before[i]
        at = starts[:, None] + np.arange(window.kernel[i])[None, :] * window.dilations[i]
        per_axis.append(((at >= low) & (at < high)).sum(axis=1))
    counts = np.ones(window.out)
    for axis, count in enumerate(per_axis):
        counts = counts * count.reshape([-1 if a == axis else 1 for a in range(len(spatial))])
    return np.maximum(counts, 1)


def lp_pool(node: Node) -> Expr:
    x = node.x
    p = node.attr("p", 2)
    if p < 1:
        node.refuse(f"has p {p}")
    total = reduced(node, x, _window(node).trimmed(shape(x)[2:]), largest=False, power=p)
    return node.cast(_root(node, total, p), dtype(x))


def _root(node: Node, total: Expr, p: int) -> Expr:
    if p == 1:
        return total
    if p == 2:
        return node.emit(relax.op.sqrt(total))
    return node.emit(relax.op.power(total, const(1.0 / p, dtype(total))))


def global_pool(kind: str) -> Converter:
    def convert(node: Node) -> Expr:
        x = node.x
        axes = list(range(2, rank(x)))
        wide = node.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x
        if kind == "max":
            result = relax.op.max(wide, axis=axes, keepdims=True)
        elif kind == "mean":
            result = relax.op.mean(wide, axis=axes, keepdims=True)
        else:
            p = node.attr("p", 2)
            powered = relax.op.power(relax.op.abs(wide), const(float(p), dtype(wide)))
            total = node.emit(relax.op.sum(powered, axis=axes, keepdims=True))
            return node.cast(_root(node, total, p), dtype(x))
        return node.cast(node.emit(result), dtype(x))

    return convert


CONVERTERS: dict[str, Converter] = {
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "LpPool": lp_pool,
    "GlobalMaxPool": global_pool("max"),
    "GlobalAveragePool": global_pool("mean"),
    "GlobalLpPool": global_pool("lp"),
}
