"""Operators that move, copy or make elements: reshape, transpose, slice, pad, concat, tile and their like."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from onnx import numpy_helper
from tvm import relax, te, tirx

from subtune.frontends.onnx_ops.node import (
    Converter,
    Expr,
    Node,
    array_const,
    axis_in,
    const,
    dtype,
    dtype_name,
    is_float,
    rank,
    shape,
)


def constant(node: Node) -> Expr:
    for name, value in node.attrs.items():
        if name == "value":
            dtype_name(value.data_type)
            return array_const(numpy_helper.to_array(value))
        if name in ("value_float", "value_floats"):
            return const(value, "float32")
        if name in ("value_int", "value_ints"):
            return const(value, "int64")
    node.refuse("holds a string or a sparse tensor, which is not supported")


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
    parts = [p for p in node.inputs if 0 not in shape(p)] or [node.x]
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


def pad(node: Node) -> Expr:
    """Pads, or crops where negative; modes constant, reflect, edge and wrap."""
    x = node.x
    if node.opset < 11:
        pads = list(node.attr("pads") or node.attr("paddings"))
        value: Expr | None = const(node.attr("value", 0.0), dtype(x))
        axes = list(range(rank(x)))
    else:
        pads = node.ints(1, "its pads")
        value = node.get(2)
        given = None if node.get(3) is None else node.ints(3, "its axes")
        axes = list(range(rank(x))) if given is None else [axis_in(a, rank(x)) for a in given]
    before, after = [0] * rank(x), [0] * rank(x)
    for position, axis in enumerate(axes):
        before[axis], after[axis] = pads[position], pads[position + len(axes)]
    mode = node.attr("mode", "constant")
    dims = [b + d + a for b, d, a in zip(before, shape(x), after, strict=True)]
    if min(dims, default=1) < 0 or mode not in ("constant", "reflect", "edge", "wrap"):
        node.refuse(f"pads {list(shape(x))} by {pads} with mode {mode}")
    if 0 in dims:
        return const(np.empty(dims), dtype(x))
    if mode == "reflect" and any(max(b, a) >= d and (b or a) for b, d, a in zip(before, shape(x), after)):
        node.refuse(f"reflects more than the extent of shape {list(shape(x))}")
    fill = None
    if value is not None and mode == "constant":
        known = node.known(2) if node.opset >= 11 else np.asarray(node.attr("value", 0.0))
        if known is not None and known.size == 1:
            fill, value = known.reshape(()).item(), None
    if mode == "constant" and fill is None and value is None:
        fill = 0
    if mode == "constant" and value is None and is_float(x) and min(before + after, default=0) >= 0:
        flat = [p for pair in zip(before, after, strict=True) for p in pair]
        if np.isfinite(fill):
            return relax.op.nn.pad(x, flat, pad_value=float(fill))
    in_dims = shape(x)

    def whole(t: Any, *given: Any) -> Any:
        def one(*i: Any) -> Any:
            index, inside = [], []
            for axis, at in enumerate(i):
                moved = at - before[axis]
                extent = in_dims[axis]
                if before[axis] <= 0 and after[axis] <= 0:
                    index.append(moved)
                    continue
                if mode == "constant":
                    inside += [moved >= 0, moved < extent]
                    index.append(moved)
                elif mode == "edge":
                    index.append(tirx.max(tirx.min(moved, extent - 1), 0))
                elif mode == "wrap":
                    index.append(tirx.floormod(moved, extent))
                else:
                    folded = tirx.abs(moved)
                    index.append(tirx.Select(folded < extent, folded, 2 * (extent - 1) - folded))
            if not inside:
                return t(*index)
            other = given[0](*[0] * len(given[0].shape)) if given else tirx.const(fill, t.dtype)
            return tirx.if_then_else(tirx.all(*inside), t(*index), other)

        return te.compute(dims, one, name="pad")

    return node.te(whole, x, *([] if value is None else [value]))


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


def trilu(node: Node) -> Expr:
    x = node.x
    k = 0 if node.get(1) is None else node.ints(1, "its diagonal")[0]
    upper = node.attr("upper", 1)

    def whole(t: Any) -> Any:
        def one(*i: Any) -> Any:
            row, column = i[-2], i[-1]
            kept = (column - row >= k) if upper else (column - row <= k)
            return tirx.Select(kept, t(*i), tirx.const(0, t.dtype))

        return te.compute(t.shape, one, name="trilu")

    return node.te(whole, x)


def eye_like(node: Node) -> Expr:
    rows, columns = shape(node.x)
    to = dtype_name(node.attr("dtype")) if node.attr("dtype") else dtype(node.x)
    return const(np.eye(rows, columns, k=node.attr("k", 0)), to)


def constant_of_shape(node: Node) -> Expr:
    dims = node.ints(0, "its shape")
    value = node.attr("value")
    if value is None:
        return relax.op.full(tuple(dims), const(0, "float32"), "float32")
    to = dtype_name(value.data_type)
    fill = numpy_helper.to_array(value).reshape(-1)[0]
    if 0 in dims:
        return const(np.empty(dims), to)
    return relax.op.full(tuple(dims), const(fill, to), to)


def range_(node: Node) -> Expr:
    start, limit, delta = (node.array(i, "its bounds").reshape(()) for i in range(3))
    return array_const(np.arange(start, limit, delta, dtype=start.dtype))


def reverse_sequence(node: Node) -> Expr:
    """The first `lens[b]` elements along the time axis are reversed for every batch entry."""
    x, lens = node.need(0), node.need(1)
    time, batch = node.attr("time_axis", 0), node.attr("batch_axis", 1)

    def whole(t: Any, n: Any) -> Any:
        def one(*i: Any) -> Any:
            index = list(i)
            length = n(i[batch])
            at = i[time].astype("int64")
            index[time] = tirx.Select(at < length, length - 1 - at, at)
            return t(*index)

        return te.compute(t.shape, one, name="reverse")

    return node.te(whole, x, lens)


def dropout(node: Node) -> tuple[Expr, ...]:
    """Inference: the identity and an all-true mask. Training is refused unless nothing is dropped."""
    x = node.x
    if node.opset >= 12:
        training = node.get(2) is not None and bool(node.array(2, "its training_mode").reshape(()))
        if training and (node.get(1) is None or float(node.array(1, "its ratio").reshape(())) != 0.0):
            node.refuse("drops at random (training_mode is true)")
    elif node.opset < 7 and not node.attr("is_test", 0):
        node.refuse("drops at random (is_test is 0)")
    if not node.wants(1):
        return (x, None) if len(node.wanted) > 1 else (x,)
    mask_dtype = "bool" if node.opset >= 10 else dtype(x)
    return x, relax.op.full(shape(x), const(1, mask_dtype), mask_dtype)


CONVERTERS: dict[str, Converter] = {
    "Constant": constant,
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
    "Pad": pad,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
    "Trilu": trilu,
    "EyeLike": eye_like,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "ReverseSequence": reverse_sequence,
    "Dropout": dropout,
}
