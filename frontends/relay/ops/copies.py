"""Operators that repeat, reverse, mask or window elements."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, const, dtype, rank, shape
from subtune.frontends.relay.fold import small
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.movement import to_shape
from subtune.frontends.relay.ops.slices import Range, cut


def _tiled(call: Call, reps: list[int]) -> Expr:
    if min(reps, default=1) < 1:
        call.refuse(f"has reps {reps}")
    return relax.op.tile(call.x, reps) if max(reps, default=1) > 1 or len(reps) > rank(call.x) else call.x


def tile(call: Call) -> Expr:
    return _tiled(call, call.need_ints("reps"))


def dyn_tile(call: Call) -> Expr:
    return _tiled(call, call.known_ints(1, "its reps"))


def repeat(call: Call) -> Expr:
    """Every element several times in a row, along an axis or flattened."""
    x, count = call.x, call.one_int("repeats")
    if count < 1:
        call.refuse(f"has repeats {count}")
    if call.attr("axis") is None:
        x, axis = to_shape(call, x, [prod(shape(x))]), 0
    else:
        axis = call.axis(rank(x))
    return relax.op.repeat(x, count, axis) if count > 1 else x


def reverse(call: Call) -> Expr:
    x, axis = call.x, call.axis(rank(call.x))
    if small(x) is None:
        return relax.op.flip(x, axis)
    extent = shape(x)[axis]
    return cut(call, x, [Range(axis, extent - 1, -1, extent)])


def reverse_sequence(call: Call) -> Expr:
    """Lengths below 1 count as 1, those beyond the axis as the axis."""
    x = call.x
    time, batch = call.axis(rank(x), 1, "seq_axis"), call.axis(rank(x), 0, "batch_axis")
    lengths = call.cast(call.arg(1), "int64")
    lengths = call.emit(relax.op.maximum(lengths, const(1, "int64")))
    lengths = call.emit(relax.op.minimum(lengths, const(shape(x)[time], "int64")))
    return call.onnx("ReverseSequence", x, lengths, time_axis=time, batch_axis=batch)


def sequence_mask(call: Call) -> Expr:
    """Elements from the batch entry's length on become mask_value; time on axis 0 or 1, the batch on the other."""
    x, lengths = call.x, call.arg(1)
    axis = call.one_int("axis", 0)
    if axis not in (0, 1) or rank(x) < 2 or shape(lengths) != (shape(x)[1 - axis],):
        call.refuse(f"masks shape {list(shape(x))} by {list(shape(lengths))} along axis {axis}")
    fill = tirx.const(call.attr("mask_value", 0.0), dtype(x))

    def whole(t: Any, n: Any) -> Any:
        def one(*i: Any) -> tirx.Select:
            beyond = i[axis].astype(dtype(lengths)) >= n(i[1 - axis])
            return tirx.Select(beyond, fill, t(*i))

        return te.compute(t.shape, one, name="sequence_mask")

    return call.te(whole, x, lengths)


def sliding_window(call: Call) -> Expr:
    """All windows over the axes from `axis` on: (…, windows…, window…)."""
    x, axis = call.x, call.axis(rank(call.x))
    window, strides = call.need_ints("window_shape"), call.need_ints("strides")
    slid = shape(x)[axis:]
    if not len(window) == len(strides) == len(slid) or any(
        w < 1 or w > d or s < 1 for w, d, s in zip(window, slid, strides, strict=False)
    ):
        call.refuse(f"slides {window} by {strides} over {list(slid)}")
    counts = [(d - w) // s + 1 for d, w, s in zip(slid, window, strides, strict=True)]
    n = len(window)

    def whole(t: Any) -> Any:
        def one(*i: Any) -> Any:
            head, at, within = i[:axis], i[axis : axis + n], i[axis + n :]
            return t(*head, *(a * s + w for a, s, w in zip(at, strides, within, strict=True)))

        return te.compute((*shape(x)[:axis], *counts, *window), one, name="sliding_window")

    return call.te(whole, x)


def matrix_set_diag(call: Call) -> Expr:
    """x with its diagonals k1 to k2 (above the main one: positive) replaced by the rows of `diagonal`.

    Diagonals shorter than a row stand at its left or right end, as the two alignments say; the uppermost comes first.
    """
    x, diagonal = call.x, call.arg(1)
    k1, k2 = call.one_int("k1", 0), call.one_int("k2", 0)
    rows, columns = shape(x)[-2:]
    above_right = bool(call.attr("super_diag_right_align", True))
    below_right = bool(call.attr("sub_diag_right_align", False))
    width = shape(diagonal)[-1]

    def whole(t: Any, d: Any) -> Any:
        def one(*i: Any) -> Any:
            *head, row, column = i
            k = column - row
            above = k >= 0
            place = tirx.Select(above, row, column)
            if k1 != k2:
                length = tirx.Select(above, tirx.min(columns - k, rows), tirx.min(columns, rows + k))
                room = width - length
                place = place + tirx.Select(above, room * int(above_right), room * int(below_right))
                head = [*head, k2 - k]
            inside = tirx.all(k >= k1, k <= k2)
            return tirx.if_then_else(inside, d(*head, place), t(*i))

        return te.compute(t.shape, one, name="matrix_set_diag")

    return call.te(whole, x, diagonal)


def trilu(call: Call) -> Expr:
    """The upper (or lower) triangle from diagonal k on, which may be computed; the rest is zero."""
    x, k = call.x, call.arg(1)
    upper = bool(call.attr("upper", True))
    if call.known(1) is not None:
        return call.onnx("Trilu", x, k, upper=int(upper))

    def whole(t: Any, diagonal: Any) -> Any:
        def one(*i: Any) -> tirx.Select:
            away = (i[-1] - i[-2]).astype("int64") - diagonal(*[0] * len(diagonal.shape)).astype("int64")
            zero = tirx.const(0, "int64")
            return tirx.Select(away >= zero if upper else away <= zero, t(*i), tirx.const(0, dtype(x)))

        return te.compute(t.shape, one, name="trilu")

    return call.te(whole, x, k)


def einsum(call: Call) -> Expr:
    parts = call.fields(0)
    return call.onnx("Einsum", *parts, equation=str(call.attr("equation", "")))


CONVERTERS: dict[str, Converter] = {
    "tile": tile,
    "dyn.tile": dyn_tile,
    "repeat": repeat,
    "reverse": reverse,
    "reverse_sequence": reverse_sequence,
    "sequence_mask": sequence_mask,
    "sliding_window": sliding_window,
    "matrix_set_diag": matrix_set_diag,
    "trilu": trilu,
    "einsum": einsum,
}
