"""Operators that move or copy elements: reshape, transpose, slice, concat, tile and their like."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, dtype, rank, shape


def _reshaped(node: Node, x: Expr, dims: list[int]) -> Expr:
    if prod(dims) != prod(shape(x)):
        node.refuse(f"cannot make {dims} of shape {list(shape(x))}")
    return relax.op.reshape(x, tuple(dims))


def reshape(node: Node) -> Expr:
    x = node.x
    dims = list(node.attr("shape")) if node.opset < 5 else node.ints(1, "its target shape")
    if not node.attr("allowzero", 0):
        if any(d == 0 and i >= rank(x) for i, d in enumerate(dims)):
            node.refuse(f"copies dimensions that shape {list(shape(x))} does not have")
        dims = [shape(x)[i] if d == 0 else d for i, d in enumerate(dims)]
    if dims.count(-1) == 1:
        rest = -prod(dims)
        if rest <= 0 or prod(shape(x)) % rest:
            node.refuse(f"cannot make {dims} of shape {list(shape(x))}")
        dims = [prod(shape(x)) // rest if d == -1 else d for d in dims]
    return _reshaped(node, x, dims)


def flatten(node: Node) -> Expr:
    x = node.x
    axis = node.attr("axis", 1)
    axis = axis + rank(x) if axis < 0 else axis
    if not 0 <= axis <= rank(x):
        node.refuse(f"has axis {axis}, outside rank {rank(x)}")
    return relax.op.reshape(x, (prod(shape(x)[:axis]), prod(shape(x)[axis:])))


def axes_of(node: Node, index: int, since: int) -> list[int] | None:
    """The axes: input `index` from opset `since` on, an attribute before; None where omitted."""
    if node.opset < since:
        axes = node.attr("axes")
        return None if axes is None else [int(a) for a in axes]
    return None if node.get(index) is None else node.ints(index, "its axes")


def squeeze(node: Node) -> Expr:
    x = node.x
    axes = axes_of(node, 1, 13)
    if axes is None:
        dims = [d for d in shape(x) if d != 1]
    else:
        at = {axis_in(a, rank(x)) for a in axes}
        if any(shape(x)[a] != 1 for a in at):
            node.refuse(f"removes an axis of shape {list(shape(x))} that is not 1")
        dims = [d for i, d in enumerate(shape(x)) if i not in at]
    return relax.op.reshape(x, tuple(dims))


def unsqueeze(node: Node) -> Expr:
    x = node.x
    axes = axes_of(node, 1, 13)
    if axes is None:
        node.refuse("has no axes")
    out_rank = rank(x) + len(axes)
    at = {axis_in(a, out_rank) for a in axes}
    dims = iter(shape(x))
    return relax.op.reshape(x, tuple(1 if i in at else next(dims) for i in range(out_rank)))


def transpose(node: Node) -> Expr:
    x = node.x
    perm = node.attr("perm") or list(reversed(range(rank(x))))
    if sorted(perm) != list(range(rank(x))):
        node.refuse(f"has perm {perm} for rank {rank(x)}")
    return x if rank(x) < 2 else relax.op.permute_dims(x, perm)


def concat(node: Node) -> Expr:
    parts = [p for p in node.every if 0 not in shape(p)] or [node.x]
    if len({dtype(p) for p in parts}) > 1:
        node.refuse("mixes dtypes")
    axis = axis_in(node.attr("axis", 1), rank(parts[0]))
    return parts[0] if len(parts) == 1 else relax.op.concat(parts, axis=axis)


def split(node: Node) -> tuple[Expr, ...]:
    x = node.x
    axis = axis_in(node.attr("axis", 0), rank(x))
    extent, count = shape(x)[axis], len(node.wanted)
    given = node.attr("split") if node.opset < 13 else None
    if node.opset >= 13 and node.get(1) is not None:
        given = node.ints(1, "its split")
    if given is None:
        count = node.attr("num_outputs", count)
        part = -(-extent // count)
        given = [min(part, extent - i * part) for i in range(count)]
    if sum(given) != extent or min(given) < 0 or len(given) != len(node.wanted):
        node.refuse(f"splits {extent} into {list(given)}")
    outputs, begin = [], 0
    for size in given:
        outputs.append(slice_axis(node, x, axis, begin, begin + size))
        begin += size
    return tuple(outputs)


def slice_axis(node: Node, x: Expr, axis: int, begin: int, end: int) -> Expr:
    """x[…, begin:end, …] along one axis; an empty result is a constant."""
    dims = list(shape(x))
    if not 0 <= begin <= end <= dims[axis]:
        node.refuse(f"takes {begin} to {end} of an axis of {dims[axis]}")
    if (begin, end) == (0, dims[axis]):
        return x
    dims[axis] = end - begin
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    return node.emit(relax.op.strided_slice(x, [axis], [begin], [end], [1], assume_inbound=True))


def slice_(node: Node) -> Expr:
    x = node.x
    if node.opset < 10:
        starts, ends = node.attr("starts"), node.attr("ends")
        axes = node.attr("axes") or list(range(len(starts)))
        steps = [1] * len(starts)
    else:
        starts, ends = node.ints(1, "its starts"), node.ints(2, "its ends")
        axes = list(range(len(starts))) if node.get(3) is None else node.ints(3, "its axes")
        steps = [1] * len(starts) if node.get(4) is None else node.ints(4, "its steps")
    plan = []
    dims = list(shape(x))
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = axis_in(axis, rank(x))
        if step == 0:
            node.refuse("has step 0")
        begin, stop, stride = slice(start, end, step).indices(dims[at]) if step > 0 else (0, 0, step)
        if step < 0:
            begin, stop, stride = _backwards(start, end, step, dims[at])
        count = max(0, -((begin - stop) // stride))
        dims[at] = count
        plan.append((at, begin, stride))
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    if all(stride > 0 for _, _, stride in plan):
        ends = [begin + (dims[at] - 1) * stride + 1 for at, begin, stride in plan]
        at_axes = [at for at, _, _ in plan]
        begins, strides = [b for _, b, _ in plan], [s for _, _, s in plan]
        return relax.op.strided_slice(x, at_axes, begins, ends, strides, assume_inbound=True)

    def whole(t: Any) -> Any:
        def one(*i: Any) -> Any:
            index = list(i)
            for at, begin, stride in plan:
                index[at] = i[at] * stride + begin
            return t(*index)

        return te.compute(dims, one, name="slice")

    return node.te(whole, x)


def _backwards(start: int, end: int, step: int, extent: int) -> tuple[int, int, int]:
    """ONNX's clamping for negative steps: begin in [0, extent-1], end in [-1, extent-1]."""
    begin = start + extent if start < 0 else start
    stop = end + extent if end < 0 else end
    return min(max(begin, 0), extent - 1), min(max(stop, -1), extent - 1), step


def expand(node: Node) -> Expr:
    x = node.x
    target = node.ints(1, "its target shape")
    try:
        dims = np.broadcast_shapes(shape(x), tuple(target))
    except ValueError:
        node.refuse(f"cannot broadcast {list(shape(x))} to {target}")
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    return x if dims == shape(x) else relax.op.broadcast_to(x, tuple(int(d) for d in dims))


def tile(node: Node) -> Expr:
    x = node.x
    if node.opset < 6:
        node.refuse("of opsets before 6 is not supported")
    repeats = node.ints(1, "its repeats")
    dims = [d * r for d, r in zip(shape(x), repeats, strict=True)]
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    return relax.op.tile(x, repeats) if repeats else x


def depth_to_space(node: Node) -> Expr:
    x = node.x
    n, c, h, w = shape(x)
    b = node.attr("blocksize")
    if node.attr("mode", "DCR") == "DCR":
        split_ = node.emit(relax.op.reshape(x, (n, b, b, c // b // b, h, w)))
        moved = node.emit(relax.op.permute_dims(split_, [0, 3, 4, 1, 5, 2]))
    else:
        split_ = node.emit(relax.op.reshape(x, (n, c // b // b, b, b, h, w)))
        moved = node.emit(relax.op.permute_dims(split_, [0, 1, 4, 2, 5, 3]))
    return relax.op.reshape(moved, (n, c // b // b, h * b, w * b))


def space_to_depth(node: Node) -> Expr:
    x = node.x
    n, c, h, w = shape(x)
    b = node.attr("blocksize")
    split_ = node.emit(relax.op.reshape(x, (n, c, h // b, b, w // b, b)))
    order = [0, 3, 5, 1, 2, 4] if node.attr("mode", "DCR") == "DCR" else [0, 1, 3, 5, 2, 4]
    moved = node.emit(relax.op.permute_dims(split_, order))
    return relax.op.reshape(moved, (n, c * b * b, h // b, w // b))


def reverse_sequence(node: Node) -> Expr:
    """The first `lens[b]` elements along the time axis are reversed for every batch entry (all, if it is longer)."""
    x, lens = node.need(0), node.need(1)
    time, batch = axis_in(node.attr("time_axis", 0), rank(x)), axis_in(node.attr("batch_axis", 1), rank(x))
    if time == batch or shape(lens) != (shape(x)[batch],):
        node.refuse(f"has lengths {list(shape(lens))} for axes {time} and {batch} of shape {list(shape(x))}")
    longest = tirx.const(shape(x)[time], "int64")

    def whole(t: Any, n: Any) -> Any:
        def one(*i: Any) -> Any:
            index = list(i)
            length = tirx.min(n(i[batch]).astype("int64"), longest)
            at = i[time].astype("int64")
            index[time] = tirx.Select(at < length, length - 1 - at, at)
            return t(*index)

        return te.compute(t.shape, one, name="reverse")

    return node.te(whole, x, lens)


CONVERTERS: dict[str, Converter] = {
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Transpose": transpose,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Expand": expand,
    "Tile": tile,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "ReverseSequence": reverse_sequence,
}
