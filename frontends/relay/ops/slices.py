"""Operators that take parts of a tensor by position: split, slices, and writing into a slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, axis_in, const, dtype, rank, shape
from subtune.frontends.relay.fold import small
from subtune.frontends.relay.ops.call import Call, Converter

_FAR = 2**62


@dataclass(frozen=True, slots=True)
class Range:
    """`count` positions of one axis from `begin` on, `stride` apart."""

    axis: int
    begin: int
    stride: int
    count: int


def cut(call: Call, x: Expr, ranges: Sequence[Range]) -> Expr:
    """x at the ranges of some axes and whole along the others."""
    dims = list(shape(x))
    for r in ranges:
        dims[r.axis] = r.count
    ranges = [r for r in ranges if (r.begin, r.stride, r.count) != (0, 1, shape(x)[r.axis])]
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    if not ranges:
        return x
    if (value := small(x)) is not None:
        for r in ranges:
            value = np.take(value, r.begin + r.stride * np.arange(r.count), r.axis)
        return array_const(value)
    if all(r.stride > 0 for r in ranges):
        ends = [r.begin + (r.count - 1) * r.stride + 1 for r in ranges]
        begins, strides = [r.begin for r in ranges], [r.stride for r in ranges]
        axes = [r.axis for r in ranges]
        return call.emit(relax.op.strided_slice(x, axes, begins, ends, strides, assume_inbound=True))

    def whole(t: Any) -> Any:
        def one(*i: Any) -> Any:
            index = list(i)
            for r in ranges:
                index[r.axis] = i[r.axis] * r.stride + r.begin
            return t(*index)

        return te.compute(dims, one, name="slice")

    return call.te(whole, x)


def ranges_of(
    call: Call,
    dims: tuple[int, ...],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] | None,
    axes: Sequence[int] | None,
) -> list[Range]:
    """Relay's slice as ranges, bounds clamped as numpy does.

    In slice mode "size", `end` holds sizes (-1: all that remain) and the strides do not count.
    """
    by_size = call.attr("slice_mode", "end") == "size"
    at = list(range(max(len(begin), len(end)))) if axes is None else [axis_in(a, len(dims)) for a in axes]
    if len(at) > len(dims) or max(len(begin), len(end)) > len(at):
        call.refuse(f"slices {max(len(begin), len(end))} axes of shape {list(dims)}")
    ranges = []
    for i, axis in enumerate(at):
        step = 1 if by_size or strides is None or i >= len(strides) else strides[i]
        if step == 0:
            call.refuse("has stride 0")
        first = begin[i] if i < len(begin) else (0 if step > 0 else _FAR)
        last = end[i] if i < len(end) else (_FAR if step > 0 else 0)
        if by_size:
            first = max(first + dims[axis], 0) if first < 0 else first
            last = _FAR if i >= len(end) or end[i] < 0 else first + end[i]
        start, _, _ = slice(first, last, step).indices(dims[axis])
        ranges.append(Range(axis, start, step, len(range(*slice(first, last, step).indices(dims[axis])))))
    return ranges


def strided_slice(call: Call) -> Expr:
    if len(call.args) > 1:
        return dyn_strided_slice(call)
    begin, end = call.need_ints("begin"), call.need_ints("end")
    return cut(call, call.x, ranges_of(call, shape(call.x), begin, end, call.ints("strides"), call.ints("axes")))


def dyn_strided_slice(call: Call) -> Expr:
    begin, end = call.known_ints(1, "its begin"), call.known_ints(2, "its end")
    strides = call.known_ints(3, "its strides") if len(call.args) > 3 else None
    return cut(call, call.x, ranges_of(call, shape(call.x), begin, end, strides, call.ints("axes")))


def slice_like(call: Call) -> Expr:
    """x cut to the other's extents along `axes`, or along all that the other has."""
    x, like = call.x, shape(call.arg(1))
    axes = call.ints("axes") or list(range(len(like)))
    at = [axis_in(a, rank(x)) for a in axes]
    if any(a >= len(like) or like[a] > shape(x)[a] for a in at):
        call.refuse(f"cannot cut {list(shape(x))} to {list(like)} along axes {axes}")
    return cut(call, x, [Range(a, 0, 1, like[a]) for a in at])


def split(call: Call) -> tuple[Expr, ...]:
    """Into equal sections, or at indices."""
    x = call.x
    axis = call.axis(rank(x), 0)
    extent, given = shape(x)[axis], call.attr("indices_or_sections")
    if isinstance(given, list | tuple):
        bounds = [0, *call.need_ints("indices_or_sections"), extent]
    else:
        (count,) = call.need_ints("indices_or_sections")
        if count < 1 or extent % count:
            call.refuse(f"splits {extent} into {count} sections")
        bounds = list(range(0, extent + 1, extent // count))
    if bounds != sorted(bounds):
        call.refuse(f"splits {extent} at {bounds[1:-1]}")
    return tuple(cut(call, x, [Range(axis, low, 1, high - low)]) for low, high in pairwise(bounds))


def strided_set(call: Call) -> Expr:
    """x with `v` written where the slice begin:end:strides lies."""
    x, v = call.x, call.arg(1)
    begin, end = call.known_ints(2, "its begin"), call.known_ints(3, "its end")
    strides = call.known_ints(4, "its strides") if len(call.args) > 4 else None
    ranges = ranges_of(call, shape(x), begin, end, strides, None)
    dims = list(shape(x))
    for r in ranges:
        dims[r.axis] = r.count
    if list(shape(v)) != dims:
        call.refuse(f"writes shape {list(shape(v))} where the slice has {dims}")

    def whole(t: Any, new: Any) -> Any:
        def one(*i: Any) -> Any:
            index, inside = list(i), []
            for r in ranges:
                away = (i[r.axis] - r.begin) if r.stride > 0 else (r.begin - i[r.axis])
                index[r.axis] = tirx.floordiv(away, abs(r.stride))
                inside += [away >= 0, index[r.axis] < r.count, tirx.floormod(away, abs(r.stride)) == 0]
            return tirx.if_then_else(tirx.all(*inside), new(*index), t(*i))

        return te.compute(t.shape, one, name="strided_set")

    return x if 0 in dims or not ranges else call.te(whole, x, v)


CONVERTERS: dict[str, Converter] = {
    "strided_slice": strided_slice,
    "dyn.strided_slice": dyn_strided_slice,
    "slice_like": slice_like,
    "split": split,
    "strided_set": strided_set,
}
