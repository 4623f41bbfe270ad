"""Gather and scatter. Negative indices count from the end.

An index out of range is an error in ONNX. A constant one is refused. One that comes at run time is not checked, which
would cost a pass over the indices in every run: a gather reads the nearest element, a scatter writes there, and neither
touches memory that is not the tensor's.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import UNSIGNED, Converter, Expr, Node, axis_in, const, dtype, rank, shape


def _checked(node: Node, index: int, extent: int | list[int]) -> Expr:
    """Input `index`; a constant one with its negative values wrapped by `extent` (one per last-axis entry, or one).

    Raises Refused: a constant index out of range.
    """
    x, known = node.need(index), node.known(index)
    if known is None:
        return x
    wide = known.astype(np.int64)
    wrong = (wide < np.negative(extent)) | (wide >= np.asarray(extent))
    if wrong.any():
        node.refuse(f"has the index {wide[wrong][0]}, out of the range of an axis of {_extents(extent)}")
    return x if (wide >= 0).all() else const(np.where(wide < 0, wide + extent, wide), dtype(x))


def _wrapped(node: Node, index: int, extent: int | list[int], is_bounded: bool = False) -> Expr:
    """`_checked`, and an index of run time wrapped too.

    Args:
        is_bounded: clamp that, for operators that trust their indices.
    """
    x = _checked(node, index, extent)
    if node.known(index) is not None:
        return x
    if dtype(x) not in UNSIGNED:
        below = relax.op.less(x, const(0, dtype(x)))
        x = node.emit(relax.op.where(below, relax.op.add(x, const(extent, dtype(x))), x))
    if is_bounded:
        last = const(np.maximum(np.asarray(extent) - 1, 0), dtype(x))
        x = node.emit(relax.op.maximum(relax.op.minimum(x, last), const(0, dtype(x))))
    return x


def _extents(extent: int | list[int]) -> str:
    return " x ".join(map(str, extent if isinstance(extent, list) else [extent]))


def gather(node: Node) -> Expr:
    x = node.x
    axis = axis_in(node.attr("axis", 0), rank(x))
    return relax.op.take(x, _wrapped(node, 1, shape(x)[axis]), axis=axis, mode="clip")


def gather_elements(node: Node) -> Expr:
    x = node.x
    axis = axis_in(node.attr("axis", 0), rank(x))
    index = _checked(node, 1, shape(x)[axis])

    def whole(t: Any, at: Any) -> Any:
        def one(*i: Any) -> Any:
            where = list(i)
            where[axis] = inside(at(*i), shape(x)[axis])
            return t(*where)

        return te.compute(at.shape, one, name="gather_elements")

    return node.te(whole, x, index)


def bounded(index: Any, extent: int) -> Any:
    """The nearest index within an axis, as int64."""
    wide = index.astype("int64")
    return tirx.max(tirx.min(wide, tirx.const(extent - 1, "int64")), tirx.const(0, "int64"))


def inside(index: Any, extent: int) -> Any:
    """`bounded`, and first wrapped where it is negative: where it is read, as indices may be as many as elements."""
    wide = index.astype("int64")
    if str(index.ty.dtype) not in UNSIGNED:
        wide = _from_end(wide, extent)
    return bounded(wide, extent)


def _from_end(wide: Any, extent: int) -> Any:
    return tirx.Select(wide < tirx.const(0, "int64"), wide + tirx.const(extent, "int64"), wide)


def gather_nd(node: Node) -> Expr:
    x = node.x
    batch = node.attr("batch_dims", 0)
    depth = shape(node.need(1))[-1]
    index = _checked(node, 1, list(shape(x)[batch : batch + depth]))
    outer = shape(index)[:-1]
    dims = (*outer, *shape(x)[batch + depth :])

    def whole(t: Any, at: Any) -> Any:
        def one(*i: Any) -> Any:
            head, tail = i[: len(outer)], i[len(outer) :]
            where = [inside(at(*head, d), shape(x)[batch + d]) for d in range(depth)]
            return t(*head[:batch], *where, *tail)

        return te.compute(dims, one, name="gather_nd")

    return node.te(whole, x, index)


_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def scatter_elements(node: Node) -> Expr:
    x, updates = node.x, node.need(2)
    axis = axis_in(node.attr("axis", 0), rank(x))
    reduction = _REDUCTIONS[node.attr("reduction", "none")]
    index = node.cast(_wrapped(node, 1, shape(x)[axis], is_bounded=True), "int32")
    return relax.op.scatter_elements(x, index, updates, axis=axis, reduction=reduction)


def scatter_nd(node: Node) -> Expr:
    x, updates = node.x, node.need(2)
    depth = shape(node.need(1))[-1]
    reduction = _REDUCTIONS[node.attr("reduction", "none")]
    index = _wrapped(node, 1, list(shape(x)[:depth]), is_bounded=True)
    return relax.op.scatter_nd(x, index, updates, reduction)


def one_hot(node: Node) -> Expr:
    """values = [off, on]; indices outside [-depth, depth) give all off."""
    indices, values = node.need(0), node.need(2)
    depth = int(node.array(1, "its depth").reshape(-1)[0])
    axis = axis_in(node.attr("axis", -1), rank(indices) + 1)
    dims = list(shape(indices))
    dims.insert(axis, depth)

    def whole(at: Any, pair: Any) -> Any:
        def one(*i: Any) -> tirx.Select:
            outer = [v for a, v in enumerate(i) if a != axis]
            wrapped = _from_end(at(*outer).astype("int64"), depth)
            return tirx.Select(wrapped == i[axis].astype("int64"), pair(1), pair(0))

        return te.compute(dims, one, name="one_hot")

    return node.te(whole, indices, values)


def compress(node: Node) -> Expr:
    condition = node.array(1, "its condition").astype(bool).reshape(-1)
    x, axis = node.x, node.attr("axis")
    if axis is None:
        x, axis = node.emit(relax.op.reshape(x, (prod(shape(x)),))), 0
    axis = axis_in(axis, rank(x))
    at = np.flatnonzero(condition[: shape(x)[axis]])
    if not at.size:
        return const(np.empty([0 if i == axis else d for i, d in enumerate(shape(x))]), dtype(x))
    return relax.op.take(x, const(at, "int64"), axis=axis, mode="clip")


def tensor_scatter(node: Node) -> Expr:
    """Writes `update` into the cache at each batch entry's position along `axis`; circular mode wraps."""
    past, update, index = node.need(0), node.need(1), node.get(2)
    axis = axis_in(node.attr("axis", -2), rank(past))
    extent, count = shape(past)[axis], shape(update)[axis]
    circular = node.attr("mode", "linear") == "circular"

    def whole(old: Any, new: Any, *starts: Any) -> Any:
        def one(*i: Any) -> Any:
            start = starts[0](i[0]).astype("int64") if starts else tirx.const(0, "int64")
            moved = i[axis].astype("int64") - start
            if circular:
                moved = tirx.floormod(moved, tirx.const(extent, "int64"))
            inside = tirx.all(moved >= tirx.const(0, "int64"), moved < tirx.const(count, "int64"))
            where = list(i)
            where[axis] = moved
            return tirx.if_then_else(inside, new(*where), old(*i))

        return te.compute(old.shape, one, name="tensor_scatter")

    return node.te(whole, past, update, *([] if index is None else [index]))


CONVERTERS: dict[str, Converter] = {
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "OneHot": one_hot,
    "Compress": compress,
    "TensorScatter": tensor_scatter,
}
