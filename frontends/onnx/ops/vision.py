"""Sampling and folding of images: GridSample, Col2Im, RoiAlign."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.gather import bounded as nearest
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, const, dtype, is_float, rank, shape

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


# long: the steps of one formula, all of which depend on the mode, the padding and the corners
def grid_sample(node: Node) -> Expr:
    """Samples x (N, C, spatial…) at the normalised coordinates of the grid, whose last axis names x, y, z."""
    x, grid = node.need(0), node.need(1)
    mode = node.attr("mode", "linear")
    mode = _MODES.get(mode, mode)
    padding, align = node.attr("padding_mode", "zeros"), bool(node.attr("align_corners", 0))
    spatial = shape(x)[2:]
    if mode == "cubic" and len(spatial) != 2:
        node.refuse(f"interpolates {len(spatial)} axes by cubics")
    if mode == "cubic" and padding == "border":
        node.refuse("clamps cubics at the border, where ONNX's reference and ONNX Runtime disagree")
    if padding == "reflection" and align and 1 in spatial:
        node.refuse("reflects within one pixel")
    if not is_float(x):
        node.refuse(f"has dtype {dtype(x)}, which is not supported")
    wide = "float64" if dtype(x) == "float64" else "float32"
    n = len(spatial)

    def c(value: float) -> Any:
        return tirx.const(value, wide)

    def reflected(v: Any, extent: int) -> tirx.Select:
        """v folded into [low, high], the image's borders."""
        low = 0.0 if align else -0.5
        span = extent - 1.0 if align else float(extent)
        away = tirx.abs(v - c(low))
        turns = tirx.floor(away / c(span))
        rest = away - turns * c(span)
        odd = turns - c(2.0) * tirx.floor(turns / c(2.0))
        return tirx.Select(odd > c(0.5), c(low + span) - rest, c(low) + rest)

    def place(g: Any, extent: int) -> Any:
        v = (g + c(1.0)) / c(2.0) * c(extent - 1.0) if align else ((g + c(1.0)) * c(extent) - c(1.0)) / c(2.0)
        if mode == "nearest":
            v = tirx.nearbyint(v)
        if padding == "border":  # between the border and the first pixel's centre the coordinate stays
            low = 0.0 if align else -0.5
            outside = tirx.any(v < c(low), v > c(extent - 1.0 - low))
            v = tirx.Select(outside, tirx.max(tirx.min(v, c(extent - 1.0)), c(0.0)), v)
        elif padding == "reflection":
            v = reflected(v, extent)
        return v

    def pixel(v: Any, extent: int) -> tuple[Any, Any]:
        """An index within the image and whether the pixel counts, for a whole coordinate."""
        if padding == "reflection":
            v = reflected(v, extent)
        bounded = tirx.max(tirx.min(v, c(extent - 1.0)), c(0.0))
        inside = tirx.all(v >= c(0.0), v <= c(extent - 1.0)) if padding == "zeros" else None
        # Again as an integer: what a NaN becomes is no index.
        return nearest(bounded, extent), inside

    def whole(t: Any, u: Any) -> Any:
        def one(*i: Any) -> Any:
            batch, channel, *at = i
            places = [place(u(batch, *at, n - 1 - a).astype(wide), spatial[a]) for a in range(n)]
            bases = [v if mode == "nearest" else tirx.floor(v) for v in places]
            taps = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]
            total = c(0.0)
            for offsets in product(taps, repeat=n):
                index, weight = [], c(1.0)
                conditions = []
                for a, offset in enumerate(offsets):
                    at_pixel, inside = pixel(bases[a] + c(float(offset)), spatial[a])
                    index.append(at_pixel)
                    conditions += [] if inside is None else [inside]
                    if mode != "nearest":
                        weight = weight * _weight(mode, tirx.abs(places[a] - bases[a] - c(float(offset))), c)
                value = t(batch, channel, *index).astype(wide)
                if conditions:
                    value = tirx.Select(tirx.all(*conditions), value, c(0.0))
                total = total + weight * value
            return total.astype(dtype(x))

        return te.compute((*shape(x)[:2], *shape(grid)[1:-1]), one, name="grid_sample")

    return node.te(whole, x, grid)


def _weight(mode: str, distance: Any, c: Any) -> Any:
    if mode == "linear":
        return c(1.0) - distance
    a = -0.75
    inner = (c(a + 2) * distance - c(a + 3)) * distance * distance + c(1.0)
    outer = ((c(a) * distance - c(5 * a)) * distance + c(8 * a)) * distance - c(4 * a)
    return tirx.Select(distance <= c(1.0), inner, outer)


def col2im(node: Node) -> Expr:
    """Sums blocks back into an image: the adjoint of im2col."""
    x = node.x
    image, block = node.ints(1, "its image shape"), node.ints(2, "its block shape")
    n = len(image)
    strides = node.attr("strides") or [1] * n
    dilations = node.attr("dilations") or [1] * n
    pads = node.attr("pads") or [0] * (2 * n)
    steps = [(image[i] + pads[i] + pads[n + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(n)]
    channels = shape(x)[1] // prod(block)

    def whole(t: Any) -> Any:
        taps = [te.reduce_axis((0, b), name=f"k{i}") for i, b in enumerate(block)]

        def one(batch: Any, channel: Any, *at: Any) -> Any:
            inside, row, column = [], channel, 0
            for i, y in enumerate(at):
                moved = y + pads[i] - taps[i] * dilations[i]
                step = tirx.floordiv(moved, strides[i])
                inside += [moved >= 0, tirx.floormod(moved, strides[i]) == 0, step < steps[i]]
                row = row * block[i] + taps[i]
                column = column * steps[i] + step
            value = tirx.if_then_else(tirx.all(*inside), t(batch, row, column), tirx.const(0, dtype(x)))
            return te.sum(value, axis=taps)

        return te.compute((shape(x)[0], channels, *image), one, name="col2im")

    return node.te(whole, x)


def max_unpool(node: Node) -> Expr:
    """Puts every maximum back where it came from; the rest is zero."""
    x, index = node.need(0), node.need(1)
    if node.get(2) is not None:
        node.refuse("has an output shape")
    n = rank(x) - 2
    kernel = node.attr("kernel_shape")
    strides, pads = node.attr("strides") or [1] * n, node.attr("pads") or [0] * (2 * n)
    spatial = [(shape(x)[2 + i] - 1) * strides[i] + kernel[i] - pads[i] - pads[n + i] for i in range(n)]
    dims = (*shape(x)[:2], *spatial)
    zeros = node.emit(relax.op.zeros((prod(dims),), dtype(x)))
    inside = relax.op.minimum(node.cast(index, "int64"), const(prod(dims) - 1, "int64"))
    inside = node.emit(relax.op.maximum(inside, const(0, "int64")))
    flat = node.emit(relax.op.reshape(inside, (prod(shape(x)),)))
    values = node.emit(relax.op.reshape(x, (prod(shape(x)),)))
    return relax.op.reshape(node.emit(relax.op.scatter_elements(zeros, flat, values, axis=0)), dims)


def roi_align(node: Node) -> Expr:
    """Only a fixed number of samples per bin: an adaptive number depends on the boxes."""
    x, boxes, batch = node.need(0), node.need(1), node.need(2)
    ratio = node.attr("sampling_ratio", 0)
    transform = node.attr("coordinate_transformation_mode", "half_pixel" if node.opset >= 16 else "output_half_pixel")
    if ratio <= 0 or node.attr("mode", "avg") != "avg" or dtype(x) != "float32":
        node.refuse("samples adaptively, takes the maximum, or is not float32")
    rows, columns = node.attr("output_height", 1), node.attr("output_width", 1)
    scale = node.attr("spatial_scale", 1.0)
    height, width = shape(x)[2:]
    offset = 0.5 if transform == "half_pixel" else 0.0

    def c(value: float) -> Any:
        return tirx.const(value, "float32")

    def whole(t: Any, box: Any, which: Any) -> Any:
        ky = te.reduce_axis((0, ratio), name="ky")
        kx = te.reduce_axis((0, ratio), name="kx")

        def one(r: Any, channel: Any, i: Any, j: Any) -> Any:
            def along(low: int, high: int, cell: Any, tap: Any, cells: int) -> Any:
                begin = box(r, low) * c(scale) - c(offset)
                length = box(r, high) * c(scale) - c(offset) - begin
                if transform != "half_pixel":
                    length = tirx.max(length, c(1.0))
                bin_size = length / c(cells)
                return (
                    begin + cell.astype("float32") * bin_size + (tap.astype("float32") + c(0.5)) * bin_size / c(ratio)
                )

            y, x_at = along(1, 3, i, ky.var, rows), along(0, 2, j, kx.var, columns)
            inside = tirx.all(y >= c(-1.0), y <= c(height), x_at >= c(-1.0), x_at <= c(width))

            def corners(v: Any, extent: int) -> tuple[Any, Any, Any]:
                bounded = tirx.min(tirx.max(v, c(0.0)), c(extent - 1.0))
                low = tirx.floor(bounded)
                high = tirx.min(low + c(1.0), c(extent - 1.0))
                return nearest(low, extent), nearest(high, extent), bounded - low

            y0, y1, fy = corners(y, height)
            x0, x1, fx = corners(x_at, width)
            b = nearest(which(r), shape(x)[0])
            top = t(b, channel, y0, x0) * (c(1.0) - fx) + t(b, channel, y0, x1) * fx
            bottom = t(b, channel, y1, x0) * (c(1.0) - fx) + t(b, channel, y1, x1) * fx
            value = top * (c(1.0) - fy) + bottom * fy
            return te.sum(tirx.Select(inside, value / c(ratio * ratio), c(0.0)), axis=[ky, kx])

        return te.compute((shape(boxes)[0], shape(x)[1], rows, columns), one, name="roi_align")

    return node.te(whole, x, boxes, batch)


CONVERTERS: dict[str, Converter] = {
    "GridSample": grid_sample,
    "Col2Im": col2im,
    "MaxUnpool": max_unpool,
    "RoiAlign": roi_align,
}
