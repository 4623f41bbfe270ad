"""Operators that do nothing are removed, and chains of movements that one operator can do are merged."""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call, TupleGetItem

from subtune.passes.exprs import Expr, array_of, dtype_of, ints, is_float, op_name, positive_axis, scalar_of, shape_of
from subtune.passes.normalize_pads import PADS
from subtune.passes.rewriter import Rules, Walk, merged, rewrite

_POOLS = tuple(f"relax.nn.{kind}_pool{dims}d" for kind in ("avg", "max") for dims in (1, 2, 3))
_ADAPTIVE_POOLS = tuple(f"relax.nn.adaptive_avg_pool{dims}d" for dims in (1, 2, 3))
_RESHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten")


def drop_dropout(walk: Walk, projection: TupleGetItem) -> Expr | None:
    """`dropout(x)[0]` -> `x`; the mask of an inference graph is never read."""
    dropout = walk.definition(projection.tuple_value)
    if op_name(dropout) != "relax.nn.dropout" or int(projection.index) != 0:
        return None
    return dropout.args[0]


def project_tuple(walk: Walk, projection: TupleGetItem) -> Expr | None:
    """`(a, b)[1]` -> `b`."""
    found = walk.definition(projection.tuple_value)
    return found.fields[int(projection.index)] if isinstance(found, tvm.ir.Tuple) else None


def drop_cast(walk: Walk, call: Call) -> Expr | None:
    """A cast to the type it has -> nothing; two casts -> one where the first loses nothing."""
    dtype, operand = dtype_of(call), call.args[0]
    if not dtype_of(operand):
        return None
    if dtype == dtype_of(operand):
        return operand
    inner = walk.defined_by(operand, "relax.astype")
    if inner is None:
        return None
    source = dtype_of(inner.args[0])
    if not source or not holds_every(dtype_of(inner), source):
        return None
    return inner.args[0] if source == dtype else relax.op.astype(inner.args[0], dtype)


def holds_every(wide: str, narrow: str) -> bool:
    """Whether `wide` represents every value of `narrow`, so that a cast there loses nothing."""
    if wide == narrow:
        return True
    try:
        a, b = tvm.DataType(wide), tvm.DataType(narrow)
    except (ValueError, TypeError):
        return False
    if narrow == "bool":
        return is_float(wide) or wide.startswith(("int", "uint"))
    if wide == "bool":
        return False
    mantissa = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
    if is_float(wide) and is_float(narrow):
        # float16 has values that bfloat16 lacks, and the other way round
        return wide in mantissa and narrow in mantissa and mantissa[wide] > mantissa[narrow] and a.bits > b.bits
    if is_float(narrow):
        return False
    value_bits = b.bits - (1 if narrow.startswith("int") else 0)
    if is_float(wide):
        return wide in mantissa and value_bits <= mantissa[wide] and wide != "float16"
    if narrow.startswith("int") and wide.startswith("uint"):
        return False
    return a.bits - (1 if wide.startswith("int") else 0) >= value_bits


def merge_reshapes(walk: Walk, call: Call) -> Expr | None:
    """Every movement that keeps the order of elements -> one reshape; to the shape it has -> nothing."""
    shape, operand = shape_of(call), call.args[0]
    if shape is None or shape_of(operand) is None:
        return None
    if shape == shape_of(operand):
        return operand
    inner = walk.definition(operand)
    if op_name(inner) in _RESHAPES and shape_of(inner.args[0]) is not None:
        return relax.op.reshape(inner.args[0], shape)
    return relax.op.reshape(operand, shape) if op_name(call) != "relax.reshape" else None


def permutation(call: Call) -> tuple[int, ...]:
    """The axes of a `permute_dims`, explicit and non-negative."""
    rank = len(call.ty.shape)
    if call.attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(positive_axis(axis, rank) for axis in ints(call.attrs.axes))


def merge_permutes(walk: Walk, call: Call) -> Expr | None:
    """Two permutations -> one; the identity -> nothing."""
    operand, shape = call.args[0], shape_of(call)
    if shape is None or shape_of(operand) is None:
        return None
    axes = permutation(call)
    if axes == tuple(range(len(axes))):
        return operand
    inner = walk.defined_by(operand, "relax.permute_dims")
    if inner is not None:
        first = permutation(inner)
        return relax.op.permute_dims(inner.args[0], [first[axis] for axis in axes])
    return None


def permute_is_reshape(walk: Walk, call: Call) -> Expr | None:
    """A permutation that moves only unit dims -> a reshape. Not among CLEANUP: see `settle_permutes`."""
    source, shape = shape_of(call.args[0]), shape_of(call)
    if source is None or shape is None:
        return None
    moved = [axis for axis in permutation(call) if source[axis] != 1]
    return relax.op.reshape(call.args[0], shape) if moved == sorted(moved) else None


def drop_broadcast(walk: Walk, call: Call) -> Expr | None:
    """A broadcast to the shape it has -> nothing."""
    shape = shape_of(call)
    return call.args[0] if shape is not None and shape == shape_of(call.args[0]) else None


def drop_single_concat(walk: Walk, call: Call) -> Expr | None:
    """`concat((x,))` -> `x`."""
    parts = walk.definition(call.args[0])
    return parts.fields[0] if isinstance(parts, tvm.ir.Tuple) and len(parts.fields) == 1 else None


def drop_neutral(walk: Walk, call: Call) -> Expr | None:
    """`x * 1`, `x / 1`, `x - 0` -> `x`, where the constant does not widen x. (`x + 0` stays: it turns -0 into 0.)"""
    neutral = {"relax.multiply": 1, "relax.divide": 1, "relax.subtract": 0}[op_name(call)]
    pairs = [(call.args[0], call.args[1])]
    if op_name(call) == "relax.multiply":
        pairs.append((call.args[1], call.args[0]))
    for x, other in pairs:
        if shape_of(x) is not None and shape_of(x) == shape_of(call) and scalar_of(other) == neutral:
            return x
    return None


def drop_pool(walk: Walk, call: Call) -> Expr | None:
    """A pooling whose windows are single elements, all of them -> nothing; so exporters write an adaptive one."""
    shape = shape_of(call)
    if shape is None or shape != shape_of(call.args[0]) or dtype_of(call) != dtype_of(call.args[0]):
        return None
    is_single = op_name(call) in _ADAPTIVE_POOLS or {*ints(call.attrs.pool_size)} == {1} == {*ints(call.attrs.strides)}
    return call.args[0] if is_single else None


def take_is_slice(walk: Walk, call: Call) -> Expr | None:
    """`take` of known neighbours along one axis -> a slice, which other kernels can read through; a gather they cannot.

    `take(x: [4, 3, 8], 1, axis=1): [4, 8]` -> `reshape(x[:, 1:2, :])`
    """
    source, shape, index = shape_of(call.args[0]), shape_of(call), array_of(call.args[1])
    if source is None or shape is None or index is None or index.ndim > 1 or not index.size:
        return None
    axis = positive_axis(call.attrs.axis, len(source)) if call.attrs.axis is not None else 0
    begin, end = int(index.flat[0]), int(index.flat[0]) + index.size
    if not 0 <= begin < end <= source[axis] or list(index.flat) != list(range(begin, end)):
        return None
    return relax.op.reshape(relax.op.strided_slice(call.args[0], [axis], [begin], [end]), shape)


def broadcast_is_repeat(walk: Walk, call: Call) -> Expr | None:
    """A new axis that is broadcast and joined to the one before it -> `repeat`, which a kernel reads through.

    `reshape(broadcast_to(y: [2, 8, 1, 9], [2, 8, 4, 9]), [2, 32, 9])` -> `repeat(reshape(y, [2, 8, 9]), 4, axis=1)`:
    how heads of attention that share their keys are written.
    """
    broadcast = walk.defined_by(call.args[0], "relax.broadcast_to")
    shape, wide = shape_of(call), shape_of(call.args[0])
    narrow = shape_of(broadcast.args[0]) if broadcast is not None else None
    if shape is None or wide is None or narrow is None or len(narrow) != len(wide):
        return None
    grown = [axis for axis, (before, after) in enumerate(zip(narrow, wide, strict=True)) if before != after]
    if len(grown) != 1 or grown[0] == 0:
        return None
    axis = grown[0]
    if shape != (*wide[: axis - 1], wide[axis - 1] * wide[axis], *wide[axis + 1 :]):
        return None
    assert broadcast is not None
    whole = relax.op.reshape(broadcast.args[0], (*narrow[:axis], *narrow[axis + 1 :]))
    return relax.op.repeat(whole, wide[axis], axis - 1)


CLEANUP: Rules = {
    "tuple_get_item": (drop_dropout, project_tuple),
    "relax.astype": (drop_cast,),
    **dict.fromkeys(_RESHAPES, (merge_reshapes, broadcast_is_repeat)),
    "relax.permute_dims": (merge_permutes,),
    "relax.broadcast_to": (drop_broadcast,),
    "relax.concat": (drop_single_concat,),
    "relax.take": (take_is_slice,),
    **dict.fromkeys((*_POOLS, *_ADAPTIVE_POOLS), (drop_pool,)),
    **dict.fromkeys(("relax.multiply", "relax.divide", "relax.subtract"), (drop_neutral,)),
}


def clean_up(mod: tvm.IRModule) -> tvm.IRModule:
    """Identity, Dropout, casts, reshapes, permutations, broadcasts, paddings that do nothing, gone; dead code gone."""
    return rewrite(mod, merged(CLEANUP, PADS))
