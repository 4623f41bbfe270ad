"""Operators of two-stage detectors: pooling over regions of interest, and the proposals themselves."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, sqrt
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from subtune.frontends.onnx.ops.node import Expr, const, dtype, shape
from subtune.frontends.relay.ops.boxes import numbers
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.movement import to_shape
from subtune.frontends.relay.ops.slices import Range, cut
from subtune.frontends.relay.ops.suppress import Overlap, by_rows, greedy, span, within

_TO_CHANNELS_LAST = [0, 2, 3, 1]


def _f(value: float) -> Any:
    return tirx.const(value, "float32")


def _pooled(call: Call) -> tuple[int, int]:
    size = call.need_ints("pooled_size")
    return (size[0], size[-1]) if len(size) in (1, 2) else call.refuse(f"has pooled_size {size}")


def _regions(call: Call) -> tuple[Expr, Expr]:
    """The features as NCHW, and the regions (n, 5): image, and left, top, right, bottom."""
    x, rois = call.arg(0), call.arg(1)
    layout = call.attr("layout", "NCHW")
    if layout not in ("NCHW", "NHWC"):
        call.refuse(f"has layout {layout!r}")
    if dtype(x) != "float32" or dtype(rois) != "float32" or len(shape(x)) != 4 or shape(rois)[1:] != (5,):
        call.refuse(f"pools {dtype(x)}{list(shape(x))} over {dtype(rois)}{list(shape(rois))}")
    return (x if layout == "NCHW" else call.emit(relax.op.permute_dims(x, [0, 3, 1, 2]))), rois


def _placed(call: Call, made: Expr) -> Expr:
    """The result in the layout of the features."""
    return made if call.attr("layout", "NCHW") == "NCHW" else relax.op.permute_dims(made, _TO_CHANNELS_LAST)


def roi_align(call: Call) -> Expr:
    """Means or maxima of bilinear samples: sample_ratio² per bin, or where it is not positive as many as there are
    pixels across a bin.
    """
    x, rois = _regions(call)
    mode, ratio = call.attr("mode", "avg"), call.one_int("sample_ratio", -1)
    if mode not in ("avg", "max"):
        call.refuse(f"has mode {mode!r}")
    rows, columns = _pooled(call)
    if mode == "avg" and ratio > 0:
        n = shape(rois)[0]
        image = call.cast(to_shape(call, cut(call, rois, [Range(1, 0, 1, 1)]), [n]), "int64")
        image = call.emit(relax.op.clip(image, 0, shape(x)[0] - 1))  # reads no other memory, whatever the regions say
        made = call.onnx(
            "RoiAlign",
            x,
            cut(call, rois, [Range(1, 1, 1, 4)]),
            image,
            coordinate_transformation_mode="output_half_pixel",
            output_height=rows,
            output_width=columns,
            sampling_ratio=ratio,
            spatial_scale=float(call.attr("spatial_scale", 1.0)),
        )
        return _placed(call, call.emit(made))
    dims = (shape(rois)[0], shape(x)[1], rows, columns)
    scale = float(call.attr("spatial_scale", 1.0))

    def row(ins: Sequence[Any], out: Any, r: Any) -> None:
        _align(ins, out, r, dims, shape(x), scale, mode == "max", ratio)

    return _placed(call, by_rows(call, row, [x, rois], (dims, "float32")))


def _align(
    ins: Sequence[Any],
    out: Any,
    r: Any,
    dims: tuple[int, ...],
    image: tuple[int, ...],
    scale: float,
    largest: bool,
    ratio: int,
) -> None:
    _, channels, rows, columns = dims
    batch, _, height, width = image

    data, rois = ins

    def along(low: int, cell: Any, cells: int) -> tuple[Any, Any, Any]:
        """Where the cell begins, how long it is, and how many samples it gets."""
        begin = rois[r, low] * _f(scale)
        length = tirx.max(rois[r, low + 2] * _f(scale) - begin, _f(1.0))
        size = length / _f(cells)
        count = tirx.IntImm("int64", ratio) if ratio > 0 else tirx.ceil(size).astype("int64")
        return begin + tirx.Cast("float32", cell) * size, size, count

    def value(image_at: Any, channel: Any, y: Any, x: Any) -> tirx.Select:
        outside = tirx.any(y < _f(-1), x < _f(-1), y > _f(height), x > _f(width))

        def corners(v: Any, extent: int) -> tuple[Any, Any, Any]:
            bounded = tirx.min(tirx.max(v, _f(0)), _f(extent - 1))
            low = tirx.floor(bounded)
            index = within(low.astype("int64"), extent)
            return index, tirx.min(index + 1, extent - 1), bounded - low

        y0, y1, fy = corners(y, height)
        x0, x1, fx = corners(x, width)
        top = data[image_at, channel, y0, x0] * (_f(1) - fx) + data[image_at, channel, y0, x1] * fx
        bottom = data[image_at, channel, y1, x0] * (_f(1) - fx) + data[image_at, channel, y1, x1] * fx
        return tirx.Select(outside, _f(0), top * (_f(1) - fy) + bottom * fy)

    with span(channels) as c, span(rows) as i, span(columns) as j:
        total = T.buffer_proxy(T.alloc_buffer((1,), "float32", scope="local"))
        total[0] = tirx.min_value("float32") if largest else _f(0)
        y, bin_y, taps_y = along(2, i, rows)
        x, bin_x, taps_x = along(1, j, columns)
        image_at = within(rois[r, 0].astype("int64"), batch)
        with span(taps_y) as a, span(taps_x) as b:
            at_y = y + (tirx.Cast("float32", a) + _f(0.5)) * bin_y / tirx.Cast("float32", taps_y)
            at_x = x + (tirx.Cast("float32", b) + _f(0.5)) * bin_x / tirx.Cast("float32", taps_x)
            sample = value(image_at, c, at_y, at_x)
            total[0] = tirx.max(total[0], sample) if largest else total[0] + sample
        taps = tirx.Cast("float32", taps_y * taps_x)
        out[r, c, i, j] = total[0] if largest else total[0] / taps


def roi_pool(call: Call) -> Expr:
    """Maxima over the pixels of each bin; 0 where a bin has none."""
    x, rois = _regions(call)
    rows, columns = _pooled(call)
    dims = (shape(rois)[0], shape(x)[1], rows, columns)
    scale = float(call.attr("spatial_scale", 1.0))

    def row(ins: Sequence[Any], out: Any, r: Any) -> None:
        _pool(ins, out, r, dims, shape(x), scale)

    return _placed(call, by_rows(call, row, [x, rois], (dims, "float32")))


def _pool(ins: Sequence[Any], out: Any, r: Any, dims: tuple[int, ...], image: tuple[int, ...], scale: float) -> None:
    _, channels, rows, columns = dims
    batch, _, height, width = image
    slack = 1e-5  # Relay's own, against the rounding of a quotient that should be whole

    data, rois = ins

    def along(low: int, cell: Any, cells: int, extent: int) -> tuple[Any, Any]:
        """The bin's first pixel and the one behind its last."""
        begin = tirx.round(rois[r, low] * _f(scale)).astype("int64")
        end = tirx.round(rois[r, low + 2] * _f(scale)).astype("int64")
        size = tirx.max(end - begin + 1, tirx.IntImm("int64", 1)).astype("float32") / _f(cells)
        at = tirx.Cast("float32", cell)
        first = tirx.floor(at * size + _f(slack)).astype("int64") + begin
        behind = tirx.ceil((at + _f(1)) * size - _f(slack)).astype("int64") + begin
        return tirx.max(tirx.min(first, extent), 0), tirx.max(tirx.min(behind, extent), 0)

    with span(channels) as c, span(rows) as i, span(columns) as j:
        top = T.buffer_proxy(T.alloc_buffer((1,), "float32", scope="local"))
        y, y_end = along(2, i, rows, height)
        x, x_end = along(1, j, columns, width)
        some = tirx.all(y < y_end, x < x_end)
        top[0] = tirx.Select(some, tirx.min_value("float32"), _f(0))
        image_at = within(rois[r, 0].astype("int64"), batch)
        with span(tirx.max(y_end - y, 0)) as a, span(tirx.max(x_end - x, 0)) as b:
            top[0] = tirx.max(top[0], data[image_at, c, y + a, x + b])
        out[r, c, i, j] = top[0]


def _anchors(scales: list[float], ratios: list[float], stride: int) -> list[tuple[float, float, float, float]]:
    """The windows round the first pixel, ratio by ratio."""
    found = []
    center = 0.5 * (stride - 1.0)
    for ratio in ratios:
        width = floor(sqrt(floor(stride * stride / ratio)) + 0.5)
        for scale in scales:
            w = width * scale
            h = floor(width * ratio + 0.5) * scale
            half_w, half_h = 0.5 * (w - 1.0), 0.5 * (h - 1.0)
            found.append((center - half_w, center - half_h, center + half_w, center + half_h))
    return found


def proposal(call: Call) -> Expr:
    """Regions (batch * rpn_post_nms_top_n, 5) of a region proposal network: image, left, top, right, bottom.

    cls_prob is (batch, 2 * anchors, h, w) with the objects' scores behind the background's, bbox_pred
    (batch, 4 * anchors, h, w), im_info (batch, 3): height, width, scale. Fewer boxes than asked for are repeated.
    """
    prob, deltas, info = call.arg(0), call.arg(1), call.arg(2)
    scales, ratios = numbers(call, "scales", [4.0, 8.0, 16.0, 32.0]), numbers(call, "ratios", [0.5, 1.0, 2.0])
    stride, smallest = call.one_int("feature_stride", 16), float(call.attr("rpn_min_size", 16))
    anchors = _anchors(scales, ratios, stride)
    batch, _, height, width = shape(prob)
    per_pixel = len(anchors)
    if shape(prob)[1] != 2 * per_pixel or shape(deltas) != (batch, 4 * per_pixel, height, width):
        call.refuse(f"has {per_pixel} anchors for {list(shape(prob))} and {list(shape(deltas))}")
    n = height * width * per_pixel
    before = call.one_int("rpn_pre_nms_top_n", 6000)
    before = min(before, n) if before > 0 else n
    after = call.one_int("rpn_post_nms_top_n", 300)
    boxes = call.te(
        lambda p, d, i, a: _proposed(p, d, i, a, stride, smallest, bool(call.attr("iou_loss", False))),
        prob,
        deltas,
        info,
        const(anchors, "float32"),
        name="proposed",
    )
    scores = to_shape(call, cut(call, boxes, [Range(2, 4, 1, 1)]), [batch, n])
    order = call.emit(relax.op.argsort(scores, axis=1, descending=True, dtype="int32"))

    def best(t: Any, at: Any) -> Any:
        return te.compute((batch, before, 4), lambda b, j, k: t(b, within(at(b, j), n), k), name="best")

    sorted_boxes = call.te(best, boxes, order, name="best")
    count, live = const([before] * batch, "int32"), const([[1] * before] * batch, "int8")
    overlap = Overlap(float(call.attr("threshold", 0.7)), beyond=True, side=1.0)
    _, kept = greedy(call, sorted_boxes, count, live, None, overlap, after)

    there = call.emit(relax.op.greater_equal(kept, const(0, "int32")))
    number = call.emit(relax.op.sum(call.cast(there, "int32"), axis=[1]))

    def repeated(t: Any, at: Any, m: Any) -> Any:
        def one(r: Any, k: Any) -> tirx.Select:
            image, place = tirx.floordiv(r, after), tirx.floormod(r, after)
            place = tirx.floormod(place.astype("int32"), tirx.max(m(image), 1))
            value = t(image, within(at(image, within(place, before)), before), tirx.max(k - 1, 0))
            return tirx.Select(k == 0, image.astype("float32"), value)

        return te.compute((batch * after, 5), one, name="repeated")

    return call.te(repeated, sorted_boxes, kept, number, name="repeated")


def _proposed(prob: Any, deltas: Any, info: Any, anchors: Any, stride: int, smallest: float, plain: bool) -> Any:
    """(batch, h * w * anchors, 5): the anchors moved by the deltas, within the image, and their scores."""
    batch, _, height, width = (int(d) for d in prob.shape)
    per_pixel = int(anchors.shape[0])

    def one(b: Any, j: Any, k: Any) -> Any:
        a, pixel = tirx.floormod(j, per_pixel), tirx.floordiv(j, per_pixel)
        x, y = tirx.floormod(pixel, width), tirx.floordiv(pixel, width)
        moved = [deltas(b, a * 4 + i, y, x) for i in range(4)]
        shift = [(at * stride).astype("float32") for at in (x, y, x, y)]
        box = [anchors(a, i) + shift[i] for i in range(4)]
        box = [v + d for v, d in zip(box, moved, strict=True)] if plain else _regressed(box, moved)
        limits = [info(b, 1), info(b, 0)] * 2
        box = [tirx.max(tirx.min(v, limit - _f(1)), _f(0)) for v, limit in zip(box, limits, strict=True)]
        least = info(b, 2) * _f(smallest)
        small = tirx.any(box[2] - box[0] + _f(1) < least, box[3] - box[1] + _f(1) < least)
        real = [(limit / _f(stride)).astype("int32") for limit in limits]
        padding = tirx.any(x.astype("int32") >= real[0], y.astype("int32") >= real[1])
        score = tirx.Select(tirx.any(small, padding), _f(-1), prob(b, per_pixel + a, y, x))
        grown = tirx.Select(small, least / _f(2), _f(0))
        values = [box[0] - grown, box[1] - grown, box[2] + grown, box[3] + grown]
        found = score
        for i, value in enumerate(values):
            found = tirx.Select(k == i, value, found)
        return found

    return te.compute((batch, height * width * per_pixel, 5), one, name="proposed")


def _regressed(box: list[Any], moved: list[Any]) -> list[Any]:
    """The box's centre moved by fractions of its size, and its size scaled by powers of e."""
    low, high = [], []
    for axis in range(2):
        size = box[axis + 2] - box[axis] + _f(1)
        center = moved[axis] * size + box[axis] + _f(0.5) * (size - _f(1))
        half = _f(0.5) * (tirx.exp(moved[axis + 2]) * size - _f(1))
        low.append(center - half)
        high.append(center + half)
    return low + high


CONVERTERS: dict[str, Converter] = {
    "vision.roi_align": roi_align,
    "vision.roi_pool": roi_pool,
    "vision.proposal": proposal,
}
