"""Detection's last steps: boxes with a score, and non-maximum suppression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, const, dtype, shape
from subtune.frontends.relay.ops.call import Call, Converter, Value
from subtune.frontends.relay.ops.slices import Range, cut
from subtune.frontends.relay.ops.suppress import Overlap, first_of, greedy, rows_at, within


def _scalar(call: Call, index: int, name: str, default: float) -> float:
    """A scalar argument, or in older modules an attribute, that has to be known."""
    if index >= len(call.args):
        value = call.attr(name, default)
        return default if value is None else float(value)
    known = call.known(index)
    return call.refuse(f"needs {name} at compile time") if known is None else float(known.reshape(-1)[0])


def _limit(call: Call, index: int, name: str, n: int) -> int:
    """How many boxes are kept at most; negative: all. ONNX's exporters write int64's largest number for all."""
    return int(min(_scalar(call, index, name, -1), n))


def _column(call: Call, data: Expr, index: int) -> Expr:
    """data[:, :, index]."""
    if not 0 <= index < shape(data)[2]:
        call.refuse(f"has index {index} in boxes of {shape(data)[2]} numbers")
    part = cut(call, data, [Range(2, index, 1, 1)])
    return call.emit(relax.op.reshape(part, shape(data)[:2]))


def _flag(call: Call, one: Callable[..., Any], *tensors: Expr) -> Expr:
    """An int8 of 1 where `one` of the tensors' elements holds."""

    def whole(*t: Any) -> Any:
        def at(*i: Any) -> tirx.Select:
            return tirx.Select(one(i, *(v(*i) for v in t)), tirx.const(1, "int8"), tirx.const(0, "int8"))

        return te.compute(t[0].shape, at, name="flags")

    return call.te(whole, *tensors, name="flags")


def _boxes(call: Call) -> Expr:
    data = call.x
    if len(shape(data)) != 3 or dtype(data) not in ("float32", "float64"):
        call.refuse(f"has boxes of {dtype(data)}{list(shape(data))}")
    return data


def get_valid_counts(call: Call) -> tuple[Expr, ...]:
    """Boxes whose score is above the threshold (and whose id is not negative) first, in their order; -1 beyond."""
    data = _boxes(call)
    threshold = tirx.const(_scalar(call, 1, "score_threshold", 0.0), dtype(data))
    score, index = call.one_int("score_index", 1), call.one_int("id_index", 0)
    if index < 0:
        flags = _flag(call, lambda i, s: s > threshold, _column(call, data, score))
    else:
        zero = tirx.const(0, dtype(data))
        columns = _column(call, data, score), _column(call, data, index)
        flags = _flag(call, lambda i, s, k: tirx.all(s > threshold, k >= zero), *columns)
    order, count = first_of(call, flags)
    return count, rows_at(call, data, order, count, -1), _masked(call, order, count)


def _masked(call: Call, x: Expr, count: Expr) -> Expr:
    """x (rows, n) with -1 from `count` on."""

    def whole(t: Any, m: Any) -> Any:
        def one(i: Any, j: Any) -> tirx.Select:
            return tirx.Select(j.astype("int32") < m(i), t(i, j), tirx.const(-1, dtype(x)))

        return te.compute(t.shape, one, name="masked")

    return call.te(whole, x, count, name="masked")


def _corners(call: Call, boxes: Expr, start: int) -> Expr:
    """(…, left, top, right, bottom) of two opposite corners, whichever they are."""
    if start < 0 or start + 4 > shape(boxes)[2]:
        call.refuse(f"has coordinates at {start} in boxes of {shape(boxes)[2]} numbers")

    def whole(t: Any) -> Any:
        def one(i: Any, j: Any, k: Any) -> tirx.Select:
            axis = tirx.floormod(k, 2)
            a, b = t(i, j, axis + start), t(i, j, axis + (start + 2))
            return tirx.Select(k < 2, tirx.min(a, b), tirx.max(a, b))

        return te.compute((*shape(boxes)[:2], 4), one, name="corners")

    return call.te(whole, boxes, name="corners")


def _best_first(call: Call, scores: Expr, count: Expr) -> Expr:
    """The order of each row's first `count` scores, descending, and of the others as they stand."""

    def whole(t: Any, m: Any) -> Any:
        def one(i: Any, j: Any) -> tirx.Select:
            return tirx.Select(j.astype("int32") < m(i), t(i, j), tirx.const(-np.inf, dtype(scores)))

        return te.compute(t.shape, one, name="scores")

    masked = call.te(whole, scores, count, name="scores")
    return call.emit(relax.op.argsort(masked, axis=1, descending=True, dtype="int32"))


def non_max_suppression(call: Call) -> Value:
    """Of overlapping boxes (of one id) the best score stays.

    Returns the boxes, best first, the suppressed ones -1 (at the end with invalid_to_bottom); or with return_indices
    where the kept ones stand in the original data, and how many they are.
    """
    data, count = _boxes(call), call.cast(call.arg(1), "int32")
    rows, n, _ = shape(data)
    limit = _limit(call, 3, "max_output_size", n)
    threshold = _scalar(call, 4, "iou_threshold", 0.5)
    score, index = call.one_int("score_index", 1), call.one_int("id_index", 0)
    top = call.one_int("top_k", -1)
    if threshold <= 0:
        order = array_const(np.tile(np.arange(n, dtype=np.int32), (rows, 1)))
        stays, valid = _flag(call, lambda i, *_: tirx.const(True, "bool"), _column(call, data, 0)), count
    else:
        order = _best_first(call, _column(call, data, score), count)
        valid = call.emit(relax.op.minimum(count, const(top, "int32"))) if top > 0 else count
    boxes = rows_at(call, data, order, valid, -1)
    if threshold > 0:
        zero = tirx.const(0, dtype(data))
        live = _flag(call, lambda i, s: s > zero, _column(call, boxes, score))
        same = bool(call.attr("force_suppress", False)) or index < 0
        ids = None if same else _column(call, boxes, index)
        if ids is not None:  # what has no id makes nothing go, and goes for nothing: its id is its own
            ids = _own_ids(call, ids)
        corners = _corners(call, boxes, call.one_int("coord_start", 2))
        stays, _ = greedy(call, corners, valid, live, ids, Overlap(threshold), limit)
    if call.attr("return_indices", True):
        return _indices(call, order, stays, valid)
    boxes = _kept_rows(call, boxes, stays)
    if not call.attr("invalid_to_bottom", False):
        return boxes
    zero = tirx.const(0, dtype(data))
    order, found = first_of(call, _flag(call, lambda i, v: v >= zero, _column(call, boxes, 0)))
    return rows_at(call, boxes, order, found, -1)


def _own_ids(call: Call, ids: Expr) -> Expr:
    def whole(t: Any) -> Any:
        def one(i: Any, j: Any) -> tirx.Select:
            own = tirx.const(-1, dtype(ids)) - j.astype(dtype(ids))
            return tirx.Select(t(i, j) < tirx.const(0, dtype(ids)), own, t(i, j))

        return te.compute(t.shape, one, name="ids")

    return call.te(whole, ids, name="ids")


def _kept_rows(call: Call, boxes: Expr, stays: Expr) -> Expr:
    def whole(t: Any, s: Any) -> Any:
        def one(i: Any, j: Any, k: Any) -> tirx.Select:
            gone = s(i, j) == tirx.const(0, dtype(stays))
            return tirx.Select(gone, tirx.const(-1, dtype(boxes)), t(i, j, k))

        return te.compute(t.shape, one, name="kept")

    return call.te(whole, boxes, stays, name="kept")


def _indices(call: Call, order: Expr, stays: Expr, valid: Expr) -> tuple[Expr, Expr]:
    """The original positions of the boxes that stay, and their number as (rows, 1)."""
    origin = _gathered(call, call.cast(call.arg(2), "int32"), order) if len(call.args) > 2 else order
    there = _masked(call, origin, valid)  # a position that is itself none (-1) does not count either
    flags = _flag(call, lambda i, s, v: tirx.all(s != tirx.const(0, dtype(stays)), v >= 0), stays, there)
    places, found = first_of(call, flags)
    return rows_at(call, there, places, found, -1), call.emit(relax.op.expand_dims(found, 1))


def _flag_below(call: Call, stays: Expr, valid: Expr) -> Expr:
    def whole(s: Any, m: Any) -> Any:
        def one(i: Any, j: Any) -> tirx.Select:
            there = tirx.all(j.astype("int32") < m(i), s(i, j) != tirx.const(0, dtype(stays)))
            return tirx.Select(there, tirx.const(1, "int8"), tirx.const(0, "int8"))

        return te.compute(s.shape, one, name="flags")

    return call.te(whole, stays, valid, name="flags")


def _gathered(call: Call, x: Expr, order: Expr) -> Expr:
    def whole(t: Any, at: Any) -> Any:
        return te.compute(at.shape, lambda i, j: t(i, within(at(i, j), shape(x)[1])), name="gathered")

    return call.te(whole, x, order, name="gathered")


def all_class_non_max_suppression(call: Call) -> tuple[Expr, ...]:
    """Suppression of every class by itself: boxes (batch, n, 4), scores (batch, classes, n).

    "onnx": rows (batch, class, box) of all that stay, classes in order, best first, and zeros beyond; their number.
    "tensorflow": per batch entry rows (class, box), their scores and their number.
    """
    boxes, scores = _boxes(call), call.arg(1)
    batch, classes, n = shape(scores)
    limit = _limit(call, 2, "max_output_boxes_per_class", n)
    overlap = Overlap(_scalar(call, 3, "iou_threshold", 0.5))
    above = tirx.const(_scalar(call, 4, "score_threshold", 0.0), dtype(scores))
    rows = call.emit(relax.op.reshape(scores, (batch * classes, n)))
    order, count = first_of(call, _flag(call, lambda i, s: s > above, rows))
    good = rows_at(call, rows, order, count, -np.inf)
    best = _best_first(call, good, count)
    places = _gathered(call, order, best)
    sorted_scores = _gathered(call, good, best)
    corners = _corners(call, boxes, 0)

    def pick(t: Any, at: Any) -> Any:
        def one(r: Any, j: Any, k: Any) -> Any:
            return t(tirx.floordiv(r, classes), within(at(r, j), n), k)

        return te.compute((batch * classes, n, 4), one, name="pick")

    live = const(np.ones((batch * classes, n)), "int8")
    picked = call.te(pick, corners, places, name="pick")
    stays, _ = greedy(call, picked, count, live, None, overlap, limit if limit > 0 else -1)
    flags = _flag_below(call, stays, count)
    groups = 1 if call.attr("output_format", "onnx") == "onnx" else batch
    per_group = batch * classes * n // groups
    at, found = first_of(call, call.emit(relax.op.reshape(flags, (groups, per_group))))
    width = 3 if groups == 1 and call.attr("output_format", "onnx") == "onnx" else 2

    def table(where: Any, m: Any, box: Any) -> Any:
        def one(g: Any, j: Any, k: Any) -> Any:
            flat = g.astype("int32") * per_group + within(where(g, j), per_group)
            row = tirx.floordiv(flat, n)
            numbers = [
                tirx.floordiv(row, classes),
                tirx.floormod(row, classes),
                box(row, tirx.floormod(flat, n)),
            ][3 - width :]
            value = numbers[-1]
            for place, number in enumerate(numbers[:-1]):
                value = tirx.Select(k == place, number, value)
            return tirx.if_then_else(j.astype("int32") < m(g), value.astype("int64"), tirx.const(0, "int64"))

        return te.compute((groups, per_group, width), one, name="table")

    rows_found = call.te(table, at, found, places, name="table")
    number = call.cast(found, "int64")
    if width == 3:
        return call.emit(relax.op.reshape(rows_found, (per_group, 3))), number
    flat_scores = call.emit(relax.op.reshape(sorted_scores, (groups, per_group)))
    return rows_found, call.cast(rows_at(call, flat_scores, at, found, 0), "float32"), number


CONVERTERS: dict[str, Converter] = {
    "vision.get_valid_counts": get_valid_counts,
    "vision.non_max_suppression": non_max_suppression,
    "vision.all_class_non_max_suppression": all_class_non_max_suppression,
}
