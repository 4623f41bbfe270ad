"""Pixels gathered from anywhere: boxes, grids, deformed windows, dilation, correlation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, dtype, is_float, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.conv import groups_of
from subtune.frontends.relay.ops.layout import layout_of, permuted, transposed


def _float32(call: Call, *values: Expr) -> tuple[Expr, ...]:
    if not all(is_float(v) for v in values):
        call.refuse(f"has dtypes {', '.join(dtype(v) for v in values)}")
    return tuple(call.cast(v, "float32") for v in values)


def _c(value: float) -> Any:
    return tirx.const(value, "float32")


def _bilinear(pixel: Callable[[Any, Any], Any], y: Any, x: Any) -> Any:
    """Between the four pixels round (y, x), which may lie beyond the image."""
    y0, x0 = tirx.floor(y), tirx.floor(x)
    rows, columns = [v.astype("int32") for v in (y0, y0 + _c(1))], [v.astype("int32") for v in (x0, x0 + _c(1))]
    top = pixel(rows[0], columns[0]) * (_c(1) - (x - x0)) + pixel(rows[0], columns[1]) * (x - x0)
    bottom = pixel(rows[1], columns[0]) * (_c(1) - (x - x0)) + pixel(rows[1], columns[1]) * (x - x0)
    return top * (_c(1) - (y - y0)) + bottom * (y - y0)


def _clipped(at: Any, extent: int) -> Any:
    return tirx.max(tirx.min(at, extent - 1), 0)


def crop_and_resize(call: Call) -> Expr:
    """Boxes (y1, x1, y2, x2) as fractions of the image, each resized to one size."""
    layout = layout_of(call, call.x, 2)
    method = call.text("method", "bilinear")
    if method not in ("bilinear", "nearest_neighbor"):
        call.refuse(f"has method {method}")
    rows, columns = call.per_axis("crop_size", 2)
    if min(rows, columns) < 2:
        call.refuse(f"crops to {rows} x {columns}, where Relay divides by zero")
    (boxes,) = _float32(call, call.arg(1))
    x = permuted(call, call.x, layout, "NCHW")
    height, width = shape(x)[2:]
    outside = float(call.attr("extrapolation_value", 0.0))

    def whole(t: Any, box: Any, which: Any) -> Any:
        def one(r: Any, c: Any, i: Any, j: Any) -> tirx.Select:
            def place(low: int, high: int, at: Any, count: int, extent: int) -> Any:
                step = _c(extent - 1) * (box(r, high) - box(r, low)) / _c(count - 1)
                return box(r, low) * _c(extent - 1) + step * at.astype("float32")

            y, x_at = place(0, 2, i, rows, height), place(1, 3, j, columns, width)

            def pixel(a: Any, b: Any) -> Any:
                return t(which(r), c, _clipped(a, height), _clipped(b, width)).astype("float32")

            if method == "bilinear":
                value = _bilinear(pixel, y, x_at)
            else:
                value = pixel(tirx.round(y).astype("int32"), tirx.round(x_at).astype("int32"))
            inside = tirx.all(y >= _c(0), y <= _c(height - 1), x_at >= _c(0), x_at <= _c(width - 1))
            return tirx.Select(inside, value, _c(outside))

        return te.compute((shape(boxes)[0], shape(x)[1], rows, columns), one, name="crop_and_resize")

    y = call.te(whole, x, boxes, call.cast(call.arg(2), "int32"))
    return permuted(call, call.cast(y, call.dtype(dtype(call.x), "out_dtype")), "NCHW", layout)


def grid_sample(call: Call) -> Expr:
    """The grid is (N, 2, H, W) of x, y (or (N, 3, D, H, W) of x, y, z)."""
    spatial = rank(call.x) - 2
    if spatial not in (2, 3) or layout_of(call, call.x, spatial) not in ("NCHW", "NCDHW"):
        call.refuse(f"has layout {call.attr('layout')} for rank {rank(call.x)}")
    method = call.text("method", "bilinear")
    modes = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    if method not in modes:
        call.refuse(f"has method {method}")
    grid = transposed(call, call.arg(1), [0, *range(2, spatial + 2), 1])
    return call.onnx(
        "GridSample",
        call.x,
        grid,
        mode=modes[method],
        padding_mode=call.text("padding_mode", "zeros"),
        align_corners=int(call.attr("align_corners", True)),
    )


def affine_grid(call: Call) -> Expr:
    """The matrices (N, 2, 3) times every (x, y, 1) of a grid over [-1, 1]."""
    rows, columns = call.per_axis("target_shape", 2)
    if min(rows, columns) < 2 or rows * columns > 1 << 26:
        call.refuse(f"has target_shape {[rows, columns]}")
    y, x = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    points = np.stack([x, y, np.ones_like(x)]).reshape(3, -1)
    grid = call.emit(relax.op.matmul(call.x, array_const(points.astype(dtype(call.x)))))
    return call.emit(relax.op.reshape(grid, (shape(call.x)[0], 2, rows, columns)))


def dilation(call: Call) -> Expr:
    """The maximum of pixel plus weight over each window; the pads are zeros."""
    layout = layout_of(call, call.x, 2, "data_layout")
    kernel_layout = call.text("kernel_layout", "IHW")
    if sorted(kernel_layout) != sorted("IHW"):
        call.refuse(f"has kernel_layout {kernel_layout}")
    x, w = permuted(call, call.x, layout, "NCHW"), permuted(call, call.arg(1), kernel_layout, "IHW")
    wide = call.dtype(dtype(call.x), "out_dtype")
    strides, steps = call.per_axis("strides", 2), call.per_axis("dilations", 2)
    before, after = call.pads(2)
    dims, kernel = shape(x), shape(w)[1:]
    out = [(dims[2 + i] + before[i] + after[i] - (kernel[i] - 1) * steps[i] - 1) // strides[i] + 1 for i in range(2)]
    if shape(w)[0] != dims[1] or min(out) < 1:
        call.refuse(f"has weights {list(shape(w))} for {list(dims)}")

    def whole(t: Any, u: Any) -> Any:
        taps = [te.reduce_axis((0, k), name=f"k{i}") for i, k in enumerate(kernel)]

        def one(n: Any, c: Any, *at: Any) -> Any:
            index = [y * strides[i] + taps[i] * steps[i] - before[i] for i, y in enumerate(at)]
            inside = tirx.all(*(v >= 0 for v in index), *(v < dims[2 + i] for i, v in enumerate(index)))
            value = tirx.if_then_else(inside, t(n, c, *index).astype(wide), tirx.const(0, wide))
            return te.max(value + u(c, *taps).astype(wide), axis=taps)

        return te.compute((*dims[:2], *out), one, name="dilation2d")

    return permuted(call, call.te(whole, x, w), "NCHW", layout)


def deformable_convolution(call: Call) -> Expr:
    """Each tap of a window moved by an offset of its own: the pixels gathered, then one product."""
    layout = layout_of(call, call.x, 2, "data_layout")
    order = call.text("kernel_layout", "OIHW")
    if sorted(order) != sorted("OIHW"):
        call.refuse(f"has kernel_layout {order}")
    x, offset, w = _float32(call, call.x, call.arg(1), call.arg(2))
    x, offset = permuted(call, x, layout, "NCHW"), permuted(call, offset, layout, "NCHW")
    w = permuted(call, w, order, "OIHW")
    strides, steps, (before, _) = call.per_axis("strides", 2), call.per_axis("dilation", 2), call.pads(2)
    groups, parts = groups_of(call), int(call.attr("deformable_groups", 1))
    batch, channels, height, width = shape(x)
    (out, each, kh, kw), (rows, columns) = shape(w), shape(offset)[2:]
    if each * groups != channels or channels % parts or shape(offset)[1] != 2 * parts * kh * kw:
        call.refuse(f"has weights {list(shape(w))} and offsets {list(shape(offset))} for {list(shape(x))}")

    def gathered(t: Any, moves: Any) -> Any:
        def one(n: Any, c: Any, p: Any, q: Any, i: Any, j: Any) -> Any:
            at = (tirx.floordiv(c, channels // parts) * kh * kw + p * kw + q) * 2
            y = (i * strides[0] - before[0] + p * steps[0]).astype("float32") + moves(n, at, i, j)
            x_at = (j * strides[1] - before[1] + q * steps[1]).astype("float32") + moves(n, at + 1, i, j)

            def pixel(a: Any, b: Any) -> Any:
                inside = tirx.all(a >= 0, a < height, b >= 0, b < width)
                return tirx.if_then_else(inside, t(n, c, a, b), _c(0))

            inside = tirx.all(y >= _c(0), y < _c(height), x_at >= _c(0), x_at < _c(width))
            return tirx.if_then_else(inside, _bilinear(pixel, y, x_at), _c(0))

        return te.compute((batch, channels, kh, kw, rows, columns), one, name="deformed")

    pixels = call.te(gathered, x, offset)
    depth = each * kh * kw
    pixels = call.emit(relax.op.reshape(pixels, (batch, groups, depth, rows * columns)))
    weights = call.emit(relax.op.reshape(w, (groups, out // groups, depth)))
    y = call.emit(relax.op.reshape(relax.op.matmul(weights, pixels), (batch, out, rows, columns)))
    return permuted(call, call.cast(y, call.dtype(dtype(call.x), "out_dtype")), "NCHW", layout)


def correlation(call: Call) -> Expr:
    """Windows of one image against displaced windows of another, averaged over taps and channels."""
    a, b = call.arg(0), call.arg(1)
    if layout_of(call, a, 2) != "NCHW" or not is_float(a) or shape(a) != shape(b):
        call.refuse(f"has layout {call.attr('layout')}, shapes {list(shape(a))}, {list(shape(b))}, dtype {dtype(a)}")
    size, reach = int(call.attr("kernel_size", 1)), int(call.attr("max_displacement", 1))
    step, apart = int(call.attr("stride1", 1)), int(call.attr("stride2", 1))
    before, after = call.pads(2)
    batch, channels, height, width = shape(a)
    border = reach + (size - 1) // 2
    out = [-(-(extent + before[i] + after[i] - 2 * border) // step) for i, extent in enumerate((height, width))]
    radius = reach // apart
    side = 2 * radius + 1
    is_product = bool(call.attr("is_multiply", True))
    if min(out) < 1:
        call.refuse(f"displaces by {reach} in an image of {height} x {width}")

    def whole(t: Any, u: Any) -> Any:
        c = te.reduce_axis((0, channels), name="c")
        p, q = (te.reduce_axis((0, size), name=f"k{i}") for i in range(2))

        def one(n: Any, d: Any, i: Any, j: Any) -> Any:
            y, x = i * step + reach + p - before[0], j * step + reach + q - before[1]

            def at(image: Any, row: Any, column: Any) -> Any:
                inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
                return tirx.if_then_else(inside, image(n, c, row, column), tirx.const(0, dtype(a)))

            down, right = tirx.floordiv(d, side) - radius, tirx.floormod(d, side) - radius
            first, second = at(t, y, x), at(u, y + down * apart, x + right * apart)
            value = first * second if is_product else tirx.abs(first - second)
            return te.sum(value / tirx.const(size * size * channels, dtype(a)), axis=[c, p, q])

        return te.compute((batch, side * side, *out), one, name="correlation")

    return call.te(whole, a, b)


CONVERTERS: dict[str, Converter] = {
    "image.crop_and_resize": crop_and_resize,
    "image.grid_sample": grid_sample,
    "image.affine_grid": affine_grid,
    "image.dilation2d": dilation,
    "nn.deformable_conv2d": deformable_convolution,
    "nn.correlation": correlation,
}
