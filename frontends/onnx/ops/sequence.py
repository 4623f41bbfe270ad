"""Sequences and optionals. A sequence is a Python tuple while importing: its length is static."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, rank, shape


def _items(node: Node, index: int = 0) -> tuple[Any, ...]:
    value = node.need(index)
    if not isinstance(value, tuple):
        node.refuse("takes a tensor where a sequence is expected")
    return value


def _position(node: Node, index: int, length: int) -> int:
    at = node.ints(index, "its position")[0]
    if not -length <= at < max(length, 1):
        node.refuse(f"has position {at} in a sequence of {length}")
    return at + length if at < 0 else at


def construct(node: Node) -> tuple[Any, ...]:
    return (node.every,)


def empty(node: Node) -> tuple[Any, ...]:
    return ((),)


def at(node: Node) -> Expr:
    items = _items(node)
    return items[_position(node, 1, len(items))]


def insert(node: Node) -> tuple[Any, ...]:
    items = list(_items(node))
    where = len(items) if node.get(2) is None else node.ints(2, "its position")[0]
    if not -len(items) <= where <= len(items):
        node.refuse(f"has position {where} in a sequence of {len(items)}")
    items.insert(where, node.need(1))
    return (tuple(items),)


def erase(node: Node) -> tuple[Any, ...]:
    items = list(_items(node))
    if not items:
        node.refuse("erases from an empty sequence")
    del items[len(items) - 1 if node.get(1) is None else _position(node, 1, len(items))]
    return (tuple(items),)


def length(node: Node) -> Expr:
    return const(len(_items(node)), "int64")


def join(node: Node) -> Expr:
    """Concatenates, along a new axis if new_axis is set."""
    items = list(_items(node))
    new = bool(node.attr("new_axis", 0))
    axis = axis_in(node.attr("axis"), rank(items[0]) + new)
    if new:
        items = [node.emit(relax.op.expand_dims(v, axis)) for v in items]
    return items[0] if len(items) == 1 else relax.op.concat(items, axis=axis)


def split(node: Node) -> tuple[Any, ...]:
    x = node.x
    axis = axis_in(node.attr("axis", 0), rank(x))
    extent = shape(x)[axis]
    keep = node.attr("keepdims", 1)
    if node.get(1) is None:
        sizes = [1] * extent
    else:
        given = node.array(1, "its split")
        keep = 1
        if given.ndim == 0:
            step = int(given)
            sizes = [min(step, extent - begin) for begin in range(0, extent, step)]
        else:
            sizes = [int(v) for v in given]
    if sum(sizes) != extent:
        node.refuse(f"splits {extent} into {sizes}")
    begins = np.cumsum([0, *sizes])
    parts = [slice_axis(node, x, axis, int(b), int(b) + s) for b, s in zip(begins, sizes, strict=False)]
    if not keep:
        parts = [node.emit(relax.op.squeeze(p, axis=[axis])) for p in parts]
    return (tuple(parts),)


def has_element(node: Node) -> Expr:
    return const(node.get(0) is not None, "bool")


def get_element(node: Node) -> Any:
    value = node.need(0)
    return (value,) if isinstance(value, tuple) else value


CONVERTERS: dict[str, Converter] = {
    "SequenceConstruct": construct,
    "SequenceEmpty": empty,
    "SequenceAt": at,
    "SequenceInsert": insert,
    "SequenceErase": erase,
    "SequenceLength": length,
    "ConcatFromSequence": join,
    "SplitToSequence": split,
    "OptionalHasElement": has_element,
    "OptionalGetElement": get_element,
}
