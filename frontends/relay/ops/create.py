"""Operators that make tensors: constants, ranges, shapes."""

from __future__ import annotations

from math import ceil, prod

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, array_const, const, dtype, numpy_dtype, rank, shape
from subtune.frontends.relay.fold import small
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.movement import broadcast, to_shape
from subtune.frontends.relay.ops.twin import cast_to
from subtune.frontends.shape_arithmetic import MAX_ELEMENTS


def _filled(call: Call, dims: list[int] | tuple[int, ...], value: float, to: str) -> Expr:
    if 0 in dims:
        return const(np.empty(dims), to)
    if prod(dims) <= MAX_ELEMENTS:
        return const(np.full(dims, value), to)
    return relax.op.full(tuple(dims), const(value, to), to)


def _plain(value: float) -> Converter:
    """zeros and ones: the shape is an attribute, or the one argument."""

    def convert(call: Call) -> Expr:
        dims = call.known_ints(0, "its shape") if call.args else call.need_ints("shape")
        return _filled(call, dims, value, call.dtype("float32"))

    return convert


def _like(value: float) -> Converter:
    return lambda call: _filled(call, shape(call.x), value, dtype(call.x))


def _full(call: Call, dims: list[int] | tuple[int, ...], fill: Expr, to: str) -> Expr:
    """The scalar `fill`, perhaps computed, everywhere."""
    if prod(shape(fill)) != 1:
        call.refuse(f"fills with shape {list(shape(fill))}")
    if (value := small(fill)) is not None:
        return broadcast(call, const(value.reshape(()), to), dims)
    return broadcast(call, to_shape(call, call.emit(cast_to(call, fill, to)), []), dims)


def full(call: Call) -> Expr:
    return _full(call, call.need_ints("shape"), call.x, call.dtype(dtype(call.x)))


def dyn_full(call: Call) -> Expr:
    return _full(call, call.known_ints(1, "its shape"), call.x, call.dtype(dtype(call.x)))


def full_like(call: Call) -> Expr:
    return _full(call, shape(call.x), call.arg(1), dtype(call.x))


def arange(call: Call) -> Expr:
    """start, start + step, … below stop: its length is a shape, so all three have to be known."""
    bounds = [call.known(i) for i in range(3)]
    if len(call.args) != 3 or any(b is None for b in bounds):
        call.refuse("needs start, stop and step at compile time")
    start, stop, step = (b.reshape(-1)[0].item() for b in bounds if b is not None)
    if step == 0:
        call.refuse("has step 0")
    to = call.dtype(dtype(call.x))
    count = max(0, ceil((stop - start) / step))
    return array_const((start + np.arange(count) * step).astype(numpy_dtype(to)))


def shape_of(call: Call) -> Expr:
    return array_const(np.asarray(shape(call.x), dtype=numpy_dtype(call.dtype("int32"))))


def ndarray_size(call: Call) -> Expr:
    return const(prod(shape(call.x)), call.dtype("int32"))


def meshgrid(call: Call) -> tuple[Expr, ...]:
    """One grid per vector (or scalar); "xy" swaps the first two axes of all."""
    parts = call.fields(0)
    swapped = call.attr("indexing", "ij") == "xy" and len(parts) > 1
    if any(rank(p) > 1 for p in parts) or len({dtype(p) for p in parts}) > 1:
        call.refuse("has no vectors of one dtype")
    axes = [1, 0, *range(2, len(parts))] if swapped else list(range(len(parts)))
    extents = [prod(shape(p)) for p in parts]
    dims = [extents[a] for a in axes]
    grids = []
    for part, axis in zip(parts, axes, strict=True):
        wide = to_shape(call, part, [extents[axes[a]] if a == axis else 1 for a in range(len(dims))])
        grids.append(broadcast(call, wide, dims))
    return tuple(grids)


CONVERTERS: dict[str, Converter] = {
    "zeros": _plain(0),
    "ones": _plain(1),
    "dyn.zeros": _plain(0),
    "dyn.ones": _plain(1),
    "zeros_like": _like(0),
    "ones_like": _like(1),
    "full": full,
    "dyn.full": dyn_full,
    "full_like": full_like,
    "arange": arange,
    "shape_of": shape_of,
    "vm.shape_of": shape_of,
    "ndarray_size": ndarray_size,
    "meshgrid": meshgrid,
}
