"""Operators that take or write elements where other tensors say."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, axis_in, const, dtype, is_float, numpy_dtype, rank, shape
from subtune.frontends.relay.fold import small
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.movement import broadcast, to_shape


def _c(value: int) -> Any:
    return tirx.const(value, "int64")


def _placed(index: Any, extent: int, mode: str) -> Any:
    """An index within [0, extent), by clamping or modulo."""
    wide = index.astype("int64")
    if mode == "wrap":
        return tirx.floormod(wide, _c(extent))
    return tirx.max(tirx.min(wide, _c(extent - 1)), _c(0))


def take(call: Call) -> Expr:
    """Modes: "clip" (and "fast", which promises indices within bounds) and "wrap"."""
    x, index = call.arg(0), call.arg(1)
    mode, batch = call.attr("mode", "clip"), call.one_int("batch_dims", 0)
    if mode not in ("clip", "fast", "wrap"):
        call.refuse(f"has mode {mode!r}")
    mode = "wrap" if mode == "wrap" else "clip"
    if call.attr("axis") is None:
        x, axis = to_shape(call, x, [prod(shape(x))]), 0
    else:
        axis = call.axis(rank(x))
    batch = batch + rank(index) if batch < 0 else batch
    value, known = small(x), small(index)
    if value is not None and known is not None and not batch:
        extent, wanted = shape(x)[axis], known.astype(np.int64)
        return array_const(np.take(value, wanted % extent if mode == "wrap" else np.clip(wanted, 0, extent - 1), axis))
    if not batch:
        return relax.op.take(x, index, axis=axis, mode=mode)
    if batch > min(axis, rank(index)) or shape(x)[:batch] != shape(index)[:batch]:
        call.refuse(f"has batch_dims {batch} for axis {axis} of {list(shape(x))}")
    inner = rank(index) - batch
    dims = (*shape(x)[:axis], *shape(index)[batch:], *shape(x)[axis + 1 :])

    def whole(t: Any, at: Any) -> Any:
        def one(*i: Any) -> Any:
            found = at(*i[:batch], *i[axis : axis + inner])
            return t(*i[:axis], _placed(found, shape(x)[axis], mode), *i[axis + inner :])

        return te.compute(dims, one, name="take")

    return call.te(whole, x, index)


def _index(call: Call, position: int) -> Expr:
    """An argument of indices as int64; floats, which Relay takes too, are truncated."""
    return call.cast(call.arg(position), "int64")


def gather(call: Call) -> Expr:
    axis = call.axis(rank(call.x))
    if rank(call.arg(1)) != rank(call.x):
        call.refuse(f"has indices of rank {rank(call.arg(1))} for rank {rank(call.x)}")
    return call.onnx("GatherElements", call.x, _index(call, 1), axis=axis)


def _index_last(call: Call, position: int) -> Expr:
    """Relay's indices (depth, …) as ONNX has them: (…, depth)."""
    index = _index(call, position)
    order = [*range(1, rank(index)), 0]
    return index if rank(index) == 1 else call.emit(relax.op.permute_dims(index, order))


def gather_nd(call: Call) -> Expr:
    batch = call.one_int("batch_dims", 0)
    if shape(call.arg(1))[0] + batch > rank(call.x):
        call.refuse(f"indexes {shape(call.arg(1))[0]} axes after {batch} of rank {rank(call.x)}")
    return call.onnx("GatherND", call.x, _index_last(call, 1), batch_dims=batch)


_REDUCTIONS = {"update": "none", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _reduction_of(call: Call, name: str) -> str:
    given = str(call.attr(name) or "update")
    return _REDUCTIONS[given] if given in _REDUCTIONS else call.refuse(f"has {name}={given!r}")


def scatter_elements(call: Call) -> Expr:
    x, updates = call.x, call.arg(2)
    axis = call.axis(rank(x), 0)
    index = _index(call, 1)
    if call.attr("reduction") == "mean":
        return relax.op.scatter_elements(x, index, updates, axis=axis, reduction="mean")
    return call.onnx("ScatterElements", x, index, updates, axis=axis, reduction=_reduction_of(call, "reduction"))


def _scatter(reduction: str) -> Converter:
    """The operators that `scatter_elements` replaced."""

    def convert(call: Call) -> Expr:
        axis = call.axis(rank(call.x), 0)
        return call.onnx("ScatterElements", call.x, _index(call, 1), call.arg(2), axis=axis, reduction=reduction)

    return convert


def scatter_nd(call: Call) -> Expr:
    reduction = _reduction_of(call, "mode")
    return call.onnx("ScatterND", call.x, _index_last(call, 1), call.arg(2), reduction=reduction)


def adv_index(call: Call) -> Expr:
    """numpy's x[i, j, …] with tensors of indices, which broadcast; negative ones count from the end."""
    x, *at = call.fields(0)
    if not at or len(at) > rank(x):
        call.refuse(f"has {len(at)} indices for rank {rank(x)}")
    common = np.broadcast_shapes(*(shape(i) for i in at))
    dims = (*common, *shape(x)[len(at) :])

    def whole(t: Any, *indices: Any) -> Any:
        def one(*i: Any) -> Any:
            where = []
            for axis, index in enumerate(indices):
                own = i[len(common) - len(index.shape) : len(common)]
                found = index(*(0 if int(d) == 1 else v for v, d in zip(own, index.shape, strict=True)))
                found = found.astype("int64")
                found = tirx.Select(found < _c(0), found + _c(shape(x)[axis]), found)
                where.append(_placed(found, shape(x)[axis], "clip"))
            return t(*where, *i[len(common) :])

        return te.compute(dims, one, name="adv_index")

    return call.te(whole, x, *at)


def _one_hot(call: Call, depth: int) -> Expr:
    """`on` where the new axis has the index, else `off`; an index outside the depth is off everywhere."""
    index, *values = call.arg(0), call.arg(1), call.arg(2)
    to = call.dtype(dtype(values[0]))
    axis = axis_in(call.one_int("axis", -1), rank(index) + 1)
    dims = [*shape(index)[:axis], depth, *shape(index)[axis:]]
    known = [small(value) for value in values]
    computed = [value for value, array in zip(values, known, strict=True) if array is None]

    def whole(at: Any, *scalars: Any) -> Any:
        rest = iter(scalars)
        high, low = (
            next(rest)(*[0] * rank(value)).astype(to)
            if array is None
            else tirx.const(array.astype(numpy_dtype(to)).item(), to)
            for value, array in zip(values, known, strict=True)
        )

        def one(*i: Any) -> tirx.Select:
            wanted = at(*i[:axis], *i[axis + 1 :]).astype("int64")
            return tirx.Select(wanted == i[axis].astype("int64"), high, low)

        return te.compute(dims, one, name="one_hot")

    return call.te(whole, index, *computed)


def one_hot(call: Call) -> Expr:
    return _one_hot(call, call.one_int("depth", 1))


def dyn_one_hot(call: Call) -> Expr:
    return _one_hot(call, call.known_ints(3, "its depth")[0])


def invert_permutation(call: Call) -> Expr:
    """y with y[x[i]] = i."""
    x = call.x
    if rank(x) != 1 or is_float(x):
        call.refuse(f"inverts {dtype(x)}{list(shape(x))}")
    positions = array_const(np.arange(shape(x)[0], dtype=numpy_dtype(dtype(x))))
    start = const(np.zeros(shape(x)), dtype(x))
    return relax.op.scatter_elements(start, _index(call, 0), positions, axis=0, reduction="update")


def unravel_index(call: Call) -> Expr:
    """Coordinates (one row per axis of the shape) of flat indices."""
    index, dims = call.x, call.known_ints(1, "the shape it counts in")
    strides = [prod(dims[axis + 1 :]) for axis in range(len(dims))]

    def whole(at: Any) -> Any:
        def one(row: Any, *i: Any) -> Any:
            found = tirx.const(0, "int64")
            for axis, (extent, stride) in enumerate(zip(dims, strides, strict=True)):
                place = tirx.floormod(tirx.floordiv(at(*i).astype("int64"), _c(stride)), _c(extent))
                found = tirx.Select(row == axis, place, found)
            return found.astype(dtype(index))

        return te.compute((len(dims), *shape(index)), one, name="unravel_index")

    return call.te(whole, index)


def _dense(call: Call, dims: list[int], values: Expr, default: Expr | None) -> Expr:
    """The values (or one for all) at the rows of the indices (n, rank), or (n,) or () of a vector; else `default`."""
    index = _index(call, 0)
    count = shape(index)[0] if rank(index) else 1
    if prod(shape(index)) != count * len(dims) or prod(shape(values)) not in (1, count):
        call.refuse(f"has indices {list(shape(index))} and values {list(shape(values))} for shape {dims}")
    fill = const(0, dtype(values)) if default is None else to_shape(call, call.cast(default, dtype(values)), [])
    rows = to_shape(call, index, [count, len(dims)])
    updates = broadcast(call, to_shape(call, values, [prod(shape(values))]), [count])
    return relax.op.scatter_nd(call.emit(broadcast(call, fill, dims)), rows, call.emit(updates), "update")


def sparse_to_dense(call: Call) -> Expr:
    return _dense(call, call.need_ints("output_shape"), call.arg(1), call.arg(2) if len(call.args) > 2 else None)


def dyn_sparse_to_dense(call: Call) -> Expr:
    dims = call.known_ints(3 if len(call.args) > 3 else 2, "its shape")
    return _dense(call, dims, call.arg(1), call.arg(2) if len(call.args) > 3 else None)


CONVERTERS: dict[str, Converter] = {
    "take": take,
    "gather": gather,
    "gather_nd": gather_nd,
    "scatter_elements": scatter_elements,
    "scatter": _scatter("none"),
    "scatter_add": _scatter("add"),
    "scatter_nd": scatter_nd,
    "adv_index": adv_index,
    "one_hot": one_hot,
    "dyn.one_hot": dyn_one_hot,
    "invert_permutation": invert_permutation,
    "unravel_index": unravel_index,
    "sparse_to_dense": sparse_to_dense,
    "dyn.sparse_to_dense": dyn_sparse_to_dense,
}
