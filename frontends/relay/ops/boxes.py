"""Anchors and boxes of single-shot detectors."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, dtype, is_float, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.suppress import first_of, rows_at


def numbers(call: Call, name: str, default: list[float]) -> list[float]:
    """A list of floats; one number is a list of one."""
    value = call.attr(name)
    if value is None:
        return default
    return [float(v) for v in (value if isinstance(value, list | tuple) else [value])]


def multibox_prior(call: Call) -> Expr:
    """Anchors (1, height * width * (sizes + ratios - 1), 4) of a feature map: they depend on its shape alone."""
    if rank(call.x) != 4:
        call.refuse(f"has a feature map of shape {list(shape(call.x))}")
    height, width = shape(call.x)[2:]
    sizes, ratios = numbers(call, "sizes", [1.0]), numbers(call, "ratios", [1.0])
    steps, offsets = numbers(call, "steps", [-1.0, -1.0]), numbers(call, "offsets", [0.5, 0.5])
    halves = [(s * height / width / 2, s / 2) for s in sizes]
    halves += [(sizes[0] * height / width * sqrt(r) / 2, sizes[0] / sqrt(r) / 2) for r in ratios[1:]]
    rows = (np.arange(height) + offsets[0]) * (steps[0] if steps[0] > 0 else 1 / height)
    columns = (np.arange(width) + offsets[1]) * (steps[1] if steps[1] > 0 else 1 / width)
    y, x = (grid[..., None] for grid in np.meshgrid(rows, columns, indexing="ij"))
    w, h = np.asarray(halves).T
    boxes = np.stack([x - w, y - h, x + w, y + h], -1).reshape(1, -1, 4).astype(np.float32)
    return array_const(np.clip(boxes, 0, 1) if call.attr("clip", False) else boxes)


def multibox_transform_loc(call: Call) -> tuple[Expr, Expr]:
    """Boxes (batch, anchors, 6) of id, score and corners, those with an object first; and how many those are.

    cls_prob is (batch, classes, anchors) with the background as class 0, loc_pred (batch, anchors * 4). Relay leaves
    what follows the valid boxes as it was in memory: -1 here.
    """
    prob, loc, anchor = call.arg(0), call.arg(1), call.arg(2)
    batch, classes, n = shape(prob)
    if not call.attr("keep_background", False) and classes < 2:
        call.refuse("has no class but the background")
    if not is_float(prob) or shape(loc) != (batch, n * 4) or shape(anchor)[1:] != (n, 4):
        call.refuse(f"has predictions {list(shape(prob))}, {list(shape(loc))} and anchors {list(shape(anchor))}")
    keep = bool(call.attr("keep_background", False))
    variances = numbers(call, "variances", [0.1, 0.1, 0.2, 0.2])
    kind = dtype(loc)

    def c(value: float) -> Any:
        return tirx.const(value, kind)

    threshold = tirx.const(float(call.attr("threshold", 0.01)), dtype(prob))

    def best(p: Any) -> Any:
        """The class of the greatest probability, 0 where that is below the threshold."""

        def one(b: Any, j: Any) -> tirx.Select:
            value, found = tirx.const(-1.0, dtype(prob)), tirx.const(0, "int32")
            for k in range(0 if keep else 1, classes):
                better = p(b, k, j) > value
                found = tirx.Select(better, tirx.const(k, "int32"), found)
                value = tirx.max(p(b, k, j), value)
            return tirx.Select(value < threshold, tirx.const(0, "int32"), found)

        return te.compute((batch, n), one, name="best")

    def score(p: Any) -> Any:
        classes_axis = te.reduce_axis((0 if keep else 1, classes), name="k")
        return te.compute((batch, n), lambda b, j: te.max(p(b, classes_axis.var, j), axis=classes_axis), name="score")

    def decoded(t: Any, at: Any, ids: Any, top: Any) -> Any:
        def one(b: Any, j: Any, k: Any) -> tirx.Select:
            axis = tirx.floormod(k, 2)
            low, high = at(0, j, axis), at(0, j, axis + 2)
            size, center = high - low, (low + high) / c(2)
            moved = t(b, j * 4 + axis) * tirx.Select(axis == 0, c(variances[0]), c(variances[1])) * size + center
            scale = tirx.Select(axis == 0, c(variances[2]), c(variances[3]))
            half = tirx.exp(t(b, j * 4 + axis + 2) * scale) * size / c(2)
            corner = tirx.Select(k < 4, moved - half, moved + half)
            corner = tirx.max(c(0), tirx.min(c(1), corner)) if call.attr("clip", True) else corner
            number = ids(b, j).astype(kind) - c(0 if keep else 1)
            return tirx.Select(k == 0, number, tirx.Select(k == 1, tirx.max(top(b, j).astype(kind), c(-1)), corner))

        return te.compute((batch, n, 6), one, name="boxes")

    ids = call.te(best, prob, name="best")
    boxes = call.te(decoded, loc, anchor, ids, call.te(score, prob, name="score"), name="boxes")
    order, count = first_of(call, call.te(lambda t: _valid(t, keep), ids, name="valid"))
    return rows_at(call, boxes, order, count, -1), count


def _valid(ids: Any, keep: bool) -> Any:
    """1 where a box has a class other than the background, or any where that is kept; else 0."""

    def one(b: Any, j: Any) -> tirx.Select:
        there = tirx.const(True, "bool") if keep else ids(b, j) > 0
        return tirx.Select(there, tirx.const(1, "int8"), tirx.const(0, "int8"))

    return te.compute(tuple(ids.shape), one, name="valid")


def yolo_reorg(call: Call) -> Expr:
    """(n, c, h, w) -> (n, c s², h/s, w/s) in Darknet's order of elements, which is no space-to-depth."""
    stride = call.one_int("stride", 1)
    batch, channels, height, width = shape(call.x)
    if stride < 1 or channels % (stride * stride) or height % stride or width % stride:
        call.refuse(f"reorders shape {list(shape(call.x))} by stride {stride}")
    inner = channels // (stride * stride)

    def whole(t: Any) -> Any:
        def one(b: Any, k: Any, j: Any, i: Any) -> Any:
            # Element (k, j, i) of the input's own shape; rows and columns run over into those that follow.
            place = tirx.floordiv(k, inner)
            row = j * stride + tirx.floordiv(place, stride)
            column = i * stride + tirx.floormod(place, stride)
            source = tirx.floormod(k, inner) * (height * stride * width * stride) + row * (width * stride) + column
            per_image = channels * height * width
            flat = b * per_image + source
            return t(
                tirx.floordiv(flat, per_image),
                tirx.floordiv(tirx.floormod(flat, per_image), height * width),
                tirx.floordiv(tirx.floormod(flat, height * width), width),
                tirx.floormod(flat, width),
            )

        return te.compute(shape(call.x), one, name="reorg")

    moved = call.te(whole, call.x)
    return relax.op.reshape(moved, (batch, channels * stride * stride, height // stride, width // stride))


CONVERTERS: dict[str, Converter] = {
    "vision.multibox_prior": multibox_prior,
    "vision.multibox_transform_loc": multibox_transform_loc,
    "vision.yolo_reorg": yolo_reorg,
}
