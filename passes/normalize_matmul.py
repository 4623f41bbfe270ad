"""Matmuls as the templates want them: a [M, K] activation times a constant [K, N].

    matmul(x[B, S, K], W[K, N])   ->  reshape(matmul(reshape(x, [B * S, K]), W), [B, S, N])
    matmul(x * c, W)              ->  matmul(x, W * c)             for a number c and a constant W
    matmul(x * c, y)              ->  matmul(x, y) * c             for any y: the epilogue multiplies, not the operand

and the reshape moves down through what follows row by row (bias, activation, residual, layer norm), so that the chain
of a transformer stays two-dimensional from one matmul to the next. Reshapes cost nothing.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.elementwise import BINARY, WITH_LOOKUPS
from subtune.passes.exprs import (
    Expr,
    array_of,
    dtype_of,
    ints,
    is_float,
    make_const,
    op_name,
    positive_axis,
    scalar_of,
    shape_of,
)
from subtune.passes.fold_constants import FOLD
from subtune.passes.normalize_cleanup import CLEANUP
from subtune.passes.rewriter import Rules, Walk, merged, rewrite
from subtune.passes.sink_views import past_binary, past_unary


def flatten_rows(walk: Walk, call: Call) -> Expr | None:
    """The rule on matmul: leading dims of the activation -> one."""
    a, b = shape_of(call.args[0]), shape_of(call.args[1])
    if a is None or b is None or len(a) < 3 or len(b) != 2:
        return None
    rows = relax.op.reshape(call.args[0], (int(np.prod(a[:-1], dtype=np.int64)), a[-1]))
    flat = relax.op.matmul(rows, call.args[1], call.attrs.out_dtype)
    return relax.op.reshape(flat, shape_of(call))


def absorb_factor(walk: Walk, call: Call) -> Expr | None:
    """The rule on matmul: a number that scales the activation -> into the constant weights."""
    weight = array_of(call.args[1])
    product = walk.defined_by(call.args[0], "relax.multiply")
    if weight is None or product is None or not is_float(str(weight.dtype)) or not walk.has_one_use(call.args[0]):
        return None
    for data, number in (product.args, reversed(product.args)):
        value = scalar_of(number)
        if value is not None and shape_of(data) == shape_of(product):
            scaled = (weight.astype(np.float64) * value).astype(weight.dtype)
            return relax.op.matmul(data, make_const(scaled), call.attrs.out_dtype)
    return None


def release_factor(walk: Walk, call: Call) -> Expr | None:
    """The rule on matmul: numbers that scale its operands, before a transpose or not -> behind it.

    In float16 scaling first may be what keeps the product finite, and it rounds: there it stays.
    """
    if any(dtype_of(value) not in ("float32", "float64") for value in (call, *call.args)):
        return None
    if array_of(call.args[1]) is not None:
        return None
    scaled = [_scaled(walk, arg) for arg in call.args]
    if scaled == [None, None]:
        return None
    operands = [arg if one is None else one[0] for arg, one in zip(call.args, scaled, strict=True)]
    factor = math.prod(one[1] for one in scaled if one is not None)
    product = relax.op.matmul(*operands, call.attrs.out_dtype)
    return relax.op.multiply(product, relax.const(factor, dtype_of(call)))


def _scaled(walk: Walk, expr: Expr) -> tuple[Expr, float] | None:
    """`expr` without the number it is multiplied by, and that number; None if there is none."""
    if not walk.has_one_use(expr):
        return None
    permute = walk.defined_by(expr, "relax.permute_dims")
    if permute is not None:
        inner = _scaled(walk, permute.args[0])
        return None if inner is None else (relax.op.permute_dims(inner[0], permute.attrs.axes), inner[1])
    product = walk.defined_by(expr, "relax.multiply")
    for data, number in (product.args, reversed(product.args)) if product is not None else ():
        value = scalar_of(number)
        if value is not None and shape_of(data) == shape_of(product):
            return data, float(value)
    return None


def _rows(walk: Walk, expr: Expr) -> Expr | None:
    """The [M, N] tensor of which `expr` is the view [..., N], or None."""
    view = walk.defined_by(expr, "relax.reshape")
    if view is None:
        return None
    inner, outer = shape_of(view.args[0]), shape_of(expr)
    if inner is None or outer is None or len(inner) != 2 or len(outer) < 3 or inner[-1] != outer[-1]:
        return None
    return view.args[0]


def _beside(arg: Expr, view: tuple[int, ...], flat: tuple[int, ...]) -> Expr | None:
    """What is the same for all rows, a row vector or a number, as [N] or [1]; a number for each row as [M, 1]."""
    given = shape_of(arg)
    if given == (*view[:-1], 1):
        return relax.op.reshape(arg, (flat[0], 1))
    if given is None or any(extent != 1 for extent in given[:-1]) or len(given) > len(view):
        return None
    return arg if len(given) <= 1 else relax.op.reshape(arg, given[-1:])


def sink_last_axis(walk: Walk, call: Call) -> Expr | None:
    """`layer_norm(view(y))` and `softmax(view(y))` over the last axis -> the view of theirs."""
    rows, shape = _rows(walk, call.args[0]), shape_of(call)
    if rows is None or shape is None:
        return None
    rest = list(call.args[1:])
    if op_name(call) == "relax.nn.softmax":
        if positive_axis(call.attrs.axis, len(shape)) != len(shape) - 1:
            return None
        return relax.op.reshape(relax.op.nn.softmax(rows, 1), shape)
    if [positive_axis(axis, len(shape)) for axis in ints(call.attrs.axes)] != [len(shape) - 1]:
        return None
    if op_name(call) == "relax.nn.layer_norm":
        flat = relax.op.nn.layer_norm(
            rows, rest[0], rest[1], [1], float(call.attrs.epsilon), bool(call.attrs.center), bool(call.attrs.scale)
        )
    else:
        flat = relax.op.nn.rms_norm(rows, rest[0], [1], float(call.attrs.epsilon))
    return relax.op.reshape(flat, shape)


MATMUL: Rules = {
    "relax.matmul": (flatten_rows, absorb_factor, release_factor),
    **dict.fromkeys(WITH_LOOKUPS, (past_unary(_rows),)),
    **dict.fromkeys(BINARY, (past_binary(_rows, _beside),)),
    **dict.fromkeys(("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.softmax"), (sink_last_axis,)),
}


def flatten_matmuls(mod: tvm.IRModule) -> tvm.IRModule:
    """Matmuls with a matrix on the right -> two-dimensional, with the reshapes moved out of the way."""
    return rewrite(mod, merged(CLEANUP, MATMUL, FOLD))
