"""Pooling: by windows, over everything, and to a given size."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, const, dtype, is_float, shape
from subtune.frontends.onnx.ops.pool import average, maximum, window_counts
from subtune.frontends.onnx.ops.window import Window
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import last, layout_of, permuted, spatial_axes

_MOST = 1 << 28
"""Windows of one channel."""


def pool(kind: str, spatial: int) -> Converter:
    def convert(call: Call) -> Expr:
        layout = _layout(call, spatial)
        extents = tuple(shape(call.x)[axis] for axis in spatial_axes(layout))
        window = _window(call, extents)
        if window.kernel == extents and not window.has_pads and set(window.out) == {1}:
            return whole(call, kind, layout)
        return _pooled(call, kind, layout, window, bool(call.attr("count_include_pad", False)))

    return convert


def _layout(call: Call, spatial: int) -> str:
    layout = layout_of(call, call.x, spatial)
    if call.text("out_layout", layout) != layout:
        call.refuse(f"has out_layout {call.attr('out_layout')} for layout {layout}, which is not supported")
    return layout


def _pooled(call: Call, kind: str, layout: str, window: Window, include: bool) -> Expr:
    """Planes of floats by Relax's own operators, which the passes know; the others channels last."""
    if len(layout) == 4 and dtype(call.x) in ("float32", "float64") and (kind == "max" or set(window.dilations) == {1}):
        x = permuted(call, call.x, layout, "NCHW")
        if kind == "max":
            y = maximum(call.node("MaxPool", x), x, window)
        else:
            y = average(call.node("AveragePool", x), x, window, include)
        return permuted(call, call.emit(y), "NCHW", layout)
    inner = last(len(layout) - 2)
    x = permuted(call, call.x, layout, inner)
    y = _reduced(call, x, window, kind)
    if kind == "mean":
        counts = window_counts(window, shape(x)[1:-1], include)
        y = call.emit(relax.op.divide(y, const(counts[None, ..., None], dtype(y))))
    return permuted(call, call.cast(y, dtype(x)), inner, layout)


def _reduced(call: Call, x: Expr, window: Window, kind: str) -> Expr:
    """The maximum or the sum over every window of x (N, ..., C); 16-bit floats as float32."""
    wide = "float32" if dtype(x) in ("float16", "bfloat16") else dtype(x)
    extents = shape(x)[1:-1]

    def compute(t: Any) -> Any:
        taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(window.kernel)]
        neutral = tirx.min_value(wide) if kind == "max" else tirx.const(0, wide)

        def one(n: Any, *rest: Any) -> Any:
            index, inside = [], []
            for i, y in enumerate(rest[:-1]):
                index.append(y * window.strides[i] + taps[i] * window.dilations[i] - window.before[i])
                if window.before[i] or window.padding[len(extents) + i] > 0:
                    inside += [index[-1] >= 0, index[-1] < extents[i]]
            value = t(n, *index, rest[-1]).astype(wide)
            value = tirx.if_then_else(tirx.all(*inside), value, neutral) if inside else value
            return te.max(value, axis=taps) if kind == "max" else te.sum(value, axis=taps)

        return te.compute((shape(x)[0], *window.out, shape(x)[-1]), one, name="pool")

    return call.te(compute, x)


def _window(call: Call, spatial: tuple[int, ...]) -> Window:
    """In ceil mode the last window may begin in the end padding, unlike ONNX's."""
    n = len(spatial)
    kernel, strides, dilation = call.per_axis("pool_size", n), call.per_axis("strides", n), call.per_axis("dilation", n)
    before, after = call.pads(n)
    out, reach = [], []
    for i, extent in enumerate(spatial):
        effective = (kernel[i] - 1) * dilation[i] + 1
        room = extent + before[i] + after[i] - effective
        if room < 0 or min(before[i], after[i]) < 0:
            call.refuse(f"has a window of {effective} over an extent of {extent} padded by {before[i]}, {after[i]}")
        count = (-(-room // strides[i]) if call.attr("ceil_mode", False) else room // strides[i]) + 1
        out.append(count)
        reach.append((count - 1) * strides[i] + effective - extent - before[i])
    if prod(out) > _MOST:
        call.refuse(f"makes {out} outputs")
    parts = (kernel, strides, dilation, before, after, out, reach)
    return Window(*(tuple(part) for part in parts))


def global_pool(kind: str, spatial: int) -> Converter:
    def convert(call: Call) -> Expr:
        return whole(call, kind, _layout(call, spatial))

    return convert


def whole(call: Call, kind: str, layout: str) -> Expr:
    """The mean or the maximum over all spatial axes, which stay as 1; means of integers are truncated."""
    x, axes = call.x, spatial_axes(layout)
    if kind == "mean" and not is_float(x):
        total = call.emit(relax.op.sum(x, axis=axes, keepdims=True))
        return call.emit(relax.op.divide(total, const(prod(shape(x)[a] for a in axes), dtype(x))))
    wide = call.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x
    reduced = (relax.op.max if kind == "max" else relax.op.mean)(wide, axis=axes, keepdims=True)
    return call.cast(call.emit(reduced), dtype(x))


def adaptive_pool(kind: str, spatial: int) -> Converter:
    """To `output_size`: output i covers floor(i * in / out) up to ceil((i + 1) * in / out)."""

    def convert(call: Call) -> Expr:
        layout = _layout(call, spatial)
        extents = [shape(call.x)[axis] for axis in spatial_axes(layout)]
        size = call.attr("output_size")
        sizes = extents if size in (None, [], ()) else call.per_axis("output_size", spatial)
        if sizes == extents:
            return call.x
        if all(s == 1 for s in sizes):
            return whole(call, kind, layout)
        if any(e % s for e, s in zip(extents, sizes, strict=True)):
            x = permuted(call, call.x, layout, last(spatial))
            return permuted(call, _uneven(call, x, kind, sizes), last(spatial), layout)
        kernel, none = tuple(e // s for e, s in zip(extents, sizes, strict=True)), (0,) * spatial
        window = Window(kernel, kernel, (1,) * spatial, none, none, tuple(sizes), none)
        return _pooled(call, kind, layout, window, False)

    return convert


def _uneven(call: Call, x: Expr, kind: str, sizes: list[int]) -> Expr:
    """Windows of different lengths over x (N, ..., C), as the longest one with what is beyond its end left out."""
    extents = shape(x)[1:-1]
    wide = "float32" if dtype(x) in ("float16", "bfloat16") else dtype(x)
    longest = [max(-(-(i + 1) * e // s) - i * e // s for i in range(s)) for e, s in zip(extents, sizes, strict=True)]

    def compute(t: Any) -> Any:
        taps = [te.reduce_axis((0, n), name=f"k{i}") for i, n in enumerate(longest)]
        neutral = tirx.min_value(wide) if kind == "max" else tirx.const(0, wide)

        def bounds(at: Any, i: int) -> tuple[Any, Any]:
            end = tirx.floordiv((at + 1) * extents[i] + sizes[i] - 1, sizes[i])
            return tirx.floordiv(at * extents[i], sizes[i]), end

        def one(n: Any, *rest: Any) -> Any:
            at, c = rest[:-1], rest[-1]
            ends = [bounds(y, i) for i, y in enumerate(at)]
            index = [begin + taps[i] for i, (begin, _) in enumerate(ends)]
            inside = tirx.all(*(index[i] < end for i, (_, end) in enumerate(ends)))
            value = tirx.if_then_else(inside, t(n, *index, c).astype(wide), neutral)
            return te.max(value, axis=taps) if kind == "max" else te.sum(value, axis=taps)

        total = te.compute((shape(x)[0], *sizes, shape(x)[-1]), one, name="adaptive_pool")
        if kind == "max":
            return total

        def mean(n: Any, *rest: Any) -> Any:
            count: Any = tirx.const(1, "int32")
            for i, y in enumerate(rest[:-1]):
                begin, end = bounds(y, i)
                count = count * (end - begin)
            return total(n, *rest) / count.astype(wide)

        return te.compute(total.shape, mean, name="adaptive_mean")

    return call.cast(call.te(compute, x), dtype(x))


_KINDS = {"max": "max", "avg": "mean"}

CONVERTERS: dict[str, Converter] = {
    f"nn.{prefix}{name}_pool{n}d": make(kind, n)
    for prefix, make in (("", pool), ("adaptive_", adaptive_pool))
    for name, kind in _KINDS.items()
    for n in (1, 2, 3)
}
CONVERTERS |= {f"nn.global_{name}_pool2d": global_pool(kind, 2) for name, kind in _KINDS.items()}
CONVERTERS |= {f"contrib.adaptive_{name}_pool2d": adaptive_pool(kind, 2) for name, kind in _KINDS.items()}  # until 0.6
