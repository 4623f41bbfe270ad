"""`permute_dims` moves down through every operator that does not care about the order of axes, until it meets its
inverse, a constant, or an operator that does care.

    op(permute(y))  ->  permute(op'(y))        op' with its axes, constants and layout permuted

All operands of an operator with several must agree: constants are permuted at compile time, operands with a single
long axis are reshaped (free), a whole tensor in another layout stops the permutation.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, TupleGetItem

from subtune.passes.elementwise import BINARY, TERNARY, UNARY, on_other, only_tensor, rebuilt
from subtune.passes.exprs import Expr, array_of, ints, make_const, op_name, positive_axis, shape_of, transposed
from subtune.passes.layout_axes import (
    Perm,
    inverse,
    order_within,
    permuted,
    reshape_through,
    to_first,
    unpermuted,
    without,
)
from subtune.passes.layout_windows import WINDOWED, sink_windowed
from subtune.passes.normalize_cleanup import permutation
from subtune.passes.rewriter import Rules, Walk

_MULTI_AXIS = {
    "relax.sum": relax.op.sum,
    "relax.mean": relax.op.mean,
    "relax.max": relax.op.max,
    "relax.min": relax.op.min,
    "relax.prod": relax.op.prod,
    "relax.variance": relax.op.variance,
    "relax.std": relax.op.std,
}
_ARG = {"relax.argmax": relax.op.argmax, "relax.argmin": relax.op.argmin}


def moved(walk: Walk, expr: Expr) -> tuple[Expr, Perm] | None:
    """(y, p) when `expr` is `permute_dims(y, p)`."""
    call = walk.defined_by(expr, "relax.permute_dims")
    if call is None or shape_of(call) is None or shape_of(call.args[0]) is None:
        return None
    return call.args[0], permutation(call)


def sink_unary(walk: Walk, call: Call) -> Expr | None:
    tensor = only_tensor(call)
    found = None if tensor is None else moved(walk, tensor)
    return None if found is None else relax.op.permute_dims(on_other(call, found[0]), found[1])


def sink_broadcasting(walk: Walk, call: Call) -> Expr | None:
    """Elementwise operators with two or three tensors."""
    shape = shape_of(call)
    if shape is None:
        return None
    found = _common(walk, list(call.args), shape)
    if found is None:
        return None
    y, p = found
    args = [_in_layout(walk, arg, p, y) for arg in call.args]
    if any(arg is None for arg in args):
        return None
    return relax.op.permute_dims(rebuilt(call, args), p)


def _common(walk: Walk, operands: list[Expr], shape: tuple[int, ...]) -> tuple[Expr, Perm] | None:
    """What `moved` says of the first permuted operand of full size."""
    for operand in operands:
        found = moved(walk, operand)
        if found is not None and shape_of(operand) == shape:
            return found
    return None


def _in_layout(walk: Walk, operand: Expr, p: Perm, y: Expr) -> Expr | None:
    """`operand` (of x's layout, possibly broadcast) for y's layout, when that costs nothing at run time."""
    found = moved(walk, operand)
    if found is not None and found[1] == p:
        return found[0]
    shape = shape_of(operand)
    if shape is None:
        return None
    if len(shape) == 0 or all(extent == 1 for extent in shape):
        return operand if len(shape) == 0 else relax.op.reshape(operand, (1,) * len(p))
    padded = (1,) * (len(p) - len(shape)) + shape
    array = array_of(operand)
    if array is not None:
        return make_const(np.transpose(array.reshape(padded), inverse(p)))
    if sum(extent != 1 for extent in padded) == 1:
        return relax.op.reshape(operand, unpermuted(padded, p))
    # One direction only (towards channels last), or two layouts would be exchanged for each other without end.
    if len(shape) == len(p) and p == to_first(len(p)):
        return _known(walk, operand, inverse(p), y)
    return None


def _known(walk: Walk, operand: Expr, p: Perm, y: Expr) -> Expr | None:
    """The variable that already holds `permute_dims(operand, p)`, or None; where `p` is its own inverse, of those that
    were defined before `y`, or both layouts would be towards channels last."""
    turns_back = p == inverse(p)
    if turns_back and y not in walk.defs:  # a parameter
        return None
    for var, value in walk.defs.items():
        if turns_back and var.same_as(y):
            return None
        if op_name(value) == "relax.permute_dims" and value.args[0].same_as(operand) and permutation(value) == p:
            return var
    return None


def sink_reduction(walk: Walk, call: Call) -> Expr | None:
    found = moved(walk, call.args[0])
    if found is None:
        return None
    y, p = found
    keepdims = bool(call.attrs.keepdims)
    axis = call.attrs.axis
    if axis is None:
        return rebuilt(call, [y])
    single = op_name(call) in _ARG
    axes = [positive_axis(a, len(p)) for a in ([axis] if single else ints(axis))]
    below = [p[a] for a in axes]
    result = _ARG[op_name(call)](y, below[0], keepdims) if single else _MULTI_AXIS[op_name(call)](y, below, keepdims)
    q = p if keepdims else without(p, axes)
    return relax.op.permute_dims(result, q) if q else result


def sink_softmax(walk: Walk, call: Call) -> Expr | None:
    found = moved(walk, call.args[0])
    if found is None:
        return None
    y, p = found
    op = relax.op.nn.softmax if op_name(call) == "relax.nn.softmax" else relax.op.nn.log_softmax
    return relax.op.permute_dims(op(y, p[positive_axis(call.attrs.axis, len(p))]), p)


def sink_concat(walk: Walk, call: Call) -> Expr | None:
    parts = walk.definition(call.args[0])
    if not isinstance(parts, tvm.ir.Tuple) or call.attrs.axis is None:
        return None
    found = next(filter(None, (moved(walk, part) for part in parts.fields)), None)
    if found is None:
        return None
    y, p = found
    args = [_in_layout(walk, part, p, y) for part in parts.fields]
    if any(arg is None for arg in args):
        return None
    return relax.op.permute_dims(relax.op.concat(args, p[positive_axis(call.attrs.axis, len(p))]), p)


def sink_split(walk: Walk, projection: TupleGetItem) -> Expr | None:
    """`split(permute(y))[i]` -> `permute(split(y)[i])`."""
    call = walk.defined_by(projection.tuple_value, "relax.split")
    if call is None:
        return None
    found = moved(walk, call.args[0])
    if found is None:
        return None
    y, p = found
    where = call.attrs.indices_or_sections
    parts = int(where.value) if hasattr(where, "value") else list(ints(where))
    below = relax.op.split(y, parts, p[positive_axis(call.attrs.axis, len(p))])
    return relax.op.permute_dims(tvm.ir.TupleGetItem(below, int(projection.index)), p)


def sink_slice(walk: Walk, call: Call) -> Expr | None:
    found = moved(walk, call.args[0])
    axes = walk.definition(call.args[1])
    if found is None or not isinstance(axes, tvm.ir.Tuple):
        return None
    y, p = found
    if not all(isinstance(a, tvm.tirx.IntImm) for a in axes.fields):
        return None
    below = tvm.ir.Tuple([relax.prim_value(p[positive_axis(a.value, len(p))]) for a in axes.fields])
    rest = list(call.args[2:])
    sliced = tvm.ir.Call(call.op, [y, below, *rest], call.attrs, call.ty_args)
    return relax.op.permute_dims(sliced, p)


def sink_take(walk: Walk, call: Call) -> Expr | None:
    """Gathers with one index, or a list of them, along one axis."""
    found, index = moved(walk, call.args[0]), shape_of(call.args[1])
    if found is None or index is None or len(index) > 1 or call.attrs.axis is None:
        return None
    y, p = found
    axis = positive_axis(call.attrs.axis, len(p))
    below = relax.op.take(y, call.args[1], p[axis], str(call.attrs.mode))
    q = p if len(index) == 1 else without(p, [axis])
    return relax.op.permute_dims(below, q) if q else below


def sink_repeat(walk: Walk, call: Call) -> Expr | None:
    found = moved(walk, call.args[0])
    if found is None or call.attrs.axis is None:
        return None
    y, p = found
    axis = p[positive_axis(call.attrs.axis, len(p))]
    return relax.op.permute_dims(relax.op.repeat(y, int(call.attrs.repeats), axis), p)


def sink_pad(walk: Walk, call: Call) -> Expr | None:
    found = moved(walk, call.args[0])
    if found is None:
        return None
    y, p = found
    widths = ints(call.attrs.pad_width)
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in inverse(p)]
    mode, value = str(call.attrs.pad_mode), float(call.attrs.pad_value)
    return relax.op.permute_dims(relax.op.nn.pad(y, [w for pair in pairs for w in pair], mode, value), p)


def sink_broadcast_to(walk: Walk, call: Call) -> Expr | None:
    found, shape = moved(walk, call.args[0]), shape_of(call)
    if found is None or shape is None or len(shape) != len(found[1]):
        return None
    y, p = found
    return relax.op.permute_dims(relax.op.broadcast_to(y, unpermuted(shape, p)), p)


def sink_reshape(walk: Walk, call: Call) -> Expr | None:
    """Reshapes that split or merge neighbours (channel groups, H and W into one axis)."""
    found, shape = moved(walk, call.args[0]), shape_of(call)
    if found is None or shape is None:
        return None
    y, p = found
    source = shape_of(y) or ()
    through = reshape_through(source, p, shape)
    if through is not None:
        return relax.op.permute_dims(relax.op.reshape(y, through[0]), through[1])
    within = order_within(source, p, shape)
    if within is None:
        return None
    # A channel shuffle: channels change places among themselves, and what is left of the permutation passes.
    shuffled = relax.op.permute_dims(y, within)
    rest = tuple(within.index(axis) for axis in p)
    through = reshape_through(permuted(source, within), rest, shape)
    if through is None or through[1] != to_first(len(shape)) or len(shape) < 4:
        return None
    return relax.op.permute_dims(relax.op.reshape(shuffled, through[0]), through[1])


def reorder_weights(walk: Walk, call: Call) -> Expr | None:
    """`matmul(reshape(permute(y), [N, K]), W)` -> `matmul(reshape(y), W')`: the rows of the constant move instead."""
    weight, flat = array_of(call.args[1]), walk.defined_by(call.args[0], "relax.reshape")
    if weight is None or flat is None or weight.ndim != 2:
        return None
    found, shape = moved(walk, flat.args[0]), shape_of(flat)
    if found is None or shape is None or len(shape) != 2:
        return None
    y, p = found
    x_shape = permuted(shape_of(y) or (), p)
    if p[0] != 0 or shape[0] != x_shape[0]:
        return None
    inner = weight.reshape(*x_shape[1:], weight.shape[1])
    order = [axis - 1 for axis in inverse(p)[1:]]
    rows = transposed(inner, [*order, len(order)]).reshape(weight.shape)
    return relax.op.matmul(relax.op.reshape(y, shape), make_const(rows), call.attrs.out_dtype)


def sink_norm(walk: Walk, call: Call) -> Expr | None:
    """layer_norm and rms_norm over one axis, group_norm, instance_norm."""
    found = moved(walk, call.args[0])
    if found is None:
        return None
    y, p = found
    attrs, name = call.attrs, op_name(call)
    axes = [p[positive_axis(axis, len(p))] for axis in ints(attrs.axes)]
    rest, epsilon = list(call.args[1:]), float(attrs.epsilon)
    if name in ("relax.nn.layer_norm", "relax.nn.rms_norm"):
        if axes != sorted(axes):
            return None
        if name == "relax.nn.rms_norm":
            result = relax.op.nn.rms_norm(y, rest[0], axes, epsilon)
        else:
            result = relax.op.nn.layer_norm(y, *rest, axes, epsilon, bool(attrs.center), bool(attrs.scale))
        return relax.op.permute_dims(result, p)
    if p[0] != 0 or axes != sorted(axes):
        return None
    channel = p[positive_axis(attrs.channel_axis, len(p))]
    flags = (bool(attrs.center), bool(attrs.scale))
    if name == "relax.nn.group_norm":
        result = relax.op.nn.group_norm(y, *rest, int(attrs.num_groups), channel, axes, epsilon, *flags)
    else:
        result = relax.op.nn.instance_norm(y, *rest, channel, axes, epsilon, *flags)
    return relax.op.permute_dims(result, p)


def sink_prelu(walk: Walk, call: Call) -> Expr | None:
    found = moved(walk, call.args[0])
    if found is None:
        return None
    y, p = found
    return relax.op.permute_dims(relax.op.nn.prelu(y, call.args[1], p[positive_axis(call.attrs.axis, len(p))]), p)


SINK: Rules = {
    **dict.fromkeys(UNARY, (sink_unary,)),
    **dict.fromkeys(BINARY | TERNARY, (sink_broadcasting,)),
    **dict.fromkeys((*_MULTI_AXIS, *_ARG), (sink_reduction,)),
    "relax.nn.softmax": (sink_softmax,),
    "relax.nn.log_softmax": (sink_softmax,),
    "relax.concat": (sink_concat,),
    "tuple_get_item": (sink_split,),
    "relax.strided_slice": (sink_slice,),
    "relax.take": (sink_unary, sink_take),
    "relax.repeat": (sink_repeat,),
    "relax.nn.pad": (sink_pad,),
    "relax.broadcast_to": (sink_broadcast_to,),
    "relax.reshape": (sink_reshape,),
    "relax.matmul": (reorder_weights,),
    "relax.nn.layer_norm": (sink_norm,),
    "relax.nn.rms_norm": (sink_norm,),
    "relax.nn.group_norm": (sink_norm,),
    "relax.nn.instance_norm": (sink_norm,),
    "relax.nn.prelu": (sink_prelu,),
    **dict.fromkeys(WINDOWED, (sink_windowed,)),
}
