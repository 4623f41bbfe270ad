"""Layouts by name: which axis is which, and the permutations between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, array_const, known_array, rank
from subtune.frontends.relay.ops.call import Call

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def first(spatial: int) -> str:
    """NCW, NCHW or NCDHW."""
    return f"NC{_SPATIAL[spatial]}"


def last(spatial: int) -> str:
    """NWC, NHWC or NDHWC."""
    return f"N{_SPATIAL[spatial]}C"


def layout_of(call: Call, x: Expr, spatial: int, name: str = "layout") -> str:
    """The data layout of `x`, an order of N, C and the spatial axes."""
    layout = call.text(name, first(spatial))
    if sorted(layout) != sorted(first(spatial)):
        packed = " (packed by a scheduler: import the model from before that)" if not layout.isalpha() else ""
        call.refuse(f"has {name} {layout}, which is not supported{packed}")
    if rank(x) != len(layout):
        call.refuse(f"has {name} {layout} for rank {rank(x)}")
    return layout


def spatial_axes(layout: str) -> list[int]:
    """Where D, H and W are, in this order."""
    return [layout.index(axis) for axis in "DHW" if axis in layout]


def permuted(call: Call, x: Expr, source: str, target: str) -> Expr:
    """`x` of layout `source` in layout `target`; constants now, anything else at run time."""
    order = [source.index(axis) for axis in target]
    return transposed(call, x, order)


def transposed(call: Call, x: Expr, order: Sequence[int]) -> Expr:
    """x with its axes in `order`; a constant stays one."""
    if list(order) == sorted(order):
        return x
    array = known_array(x, {})
    if array is not None:
        return array_const(np.transpose(array, order))
    return call.emit(relax.op.permute_dims(x, list(order)))


def reshaped(call: Call, x: Expr, dims: Sequence[int]) -> Expr:
    """x in another shape; a constant stays one."""
    array = known_array(x, {})
    return array_const(array.reshape(dims)) if array is not None else call.emit(relax.op.reshape(x, list(dims)))


def along(call: Call, vector: Expr, axis: int, ndim: int) -> Expr:
    """A vector shaped to broadcast along `axis` of `ndim` axes."""
    return vector if axis == ndim - 1 else reshaped(call, vector, [-1 if a == axis else 1 for a in range(ndim)])
