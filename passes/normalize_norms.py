"""LayerNorm and RMSNorm that exporters write out, as the one operator they are.

    d = x - mean(x);  d / sqrt(mean(d * d) + eps) * g + b   ->  layer_norm(x, g, b)
    x / sqrt(mean(x * x) + eps) * g                         ->  rms_norm(x, g)

over one axis. A reduction with its elementwise tail is then one anchor instead of nine operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.passes.channels import channel_vector
from subtune.passes.exprs import (
    Expr,
    array_of,
    dtype_of,
    ints,
    is_const,
    is_float,
    make_const,
    op_name,
    positive_axis,
    scalar_of,
    shape_of,
)
from subtune.passes.products import same
from subtune.passes.rewriter import Rules, Walk, rewrite


def recognise_norm(walk: Walk, call: Any) -> Expr | None:
    """The rule on `d / sqrt(...)`, `d * rsqrt(...)` and `d * (1 / sqrt(...))`."""
    shape, dtype = shape_of(call), dtype_of(call)
    if shape is None or not is_float(dtype):
        return None
    for centred, power in _quotients(walk, call):
        axis, epsilon = _mean_square(walk, power, centred, len(shape))
        if axis is None or shape_of(centred) != shape:
            continue
        ones = make_const(np.ones(shape[axis], dtype))
        x = _uncentred(walk, centred, axis)
        if x is not None:
            return relax.op.nn.layer_norm(x, ones, make_const(np.zeros(shape[axis], dtype)), [axis], epsilon)
        if axis == len(shape) - 1:
            return relax.op.nn.rms_norm(centred, ones, [axis], epsilon)
    return None


def _quotients(walk: Walk, call: Any) -> list[tuple[Expr, Expr]]:
    """The (a, b) for which the call is `a / sqrt(b)`."""
    pairs = []
    if op_name(call) == "relax.divide":
        root = walk.defined_by(call.args[1], "relax.sqrt")
        return [] if root is None else [(call.args[0], root.args[0])]
    for a, b in (call.args, reversed(call.args)):
        inverse = walk.definition(b)
        if op_name(inverse) == "relax.rsqrt":
            pairs.append((a, inverse.args[0]))
        if op_name(inverse) == "relax.divide" and scalar_of(inverse.args[0]) == 1.0:
            root = walk.defined_by(inverse.args[1], "relax.sqrt")
            if root is not None:
                pairs.append((a, root.args[0]))
    return pairs


def _mean_square(walk: Walk, power: Expr, centred: Expr, rank: int) -> tuple[int | None, float]:
    """(axis, eps) when `power` is `mean(centred ** 2, axis) + eps`, or `variance` of what `centred` centres."""
    total = walk.defined_by(power, "relax.add")
    if total is None:
        return None, 0.0
    mean, epsilon = total.args[0], scalar_of(total.args[1])
    if epsilon is None:
        mean, epsilon = total.args[1], scalar_of(total.args[0])
    reduction = walk.definition(mean)
    if epsilon is None or op_name(reduction) not in ("relax.mean", "relax.variance"):
        return None, 0.0
    axis = _kept_axis(reduction, rank)
    if axis is None:
        return None, 0.0
    if op_name(reduction) == "relax.variance":
        source = _uncentred(walk, centred, axis)
        return (axis, epsilon) if source is not None and same(walk, reduction.args[0], source) else (None, 0.0)
    return (axis, epsilon) if _is_square(walk, reduction.args[0], centred) else (None, 0.0)


def _is_square(walk: Walk, expr: Expr, base: Expr) -> bool:
    found = walk.definition(expr)
    name = op_name(found)
    if name == "relax.square":
        return same(walk, found.args[0], base)
    if name == "relax.power":
        return scalar_of(found.args[1]) == 2.0 and same(walk, found.args[0], base)
    if name == "relax.multiply":
        return same(walk, found.args[0], base) and same(walk, found.args[1], base)
    return False


def _uncentred(walk: Walk, centred: Expr, axis: int) -> Expr | None:
    """x when `centred` is `x - mean(x, axis)`."""
    difference = walk.defined_by(centred, "relax.subtract")
    if difference is None:
        return None
    mean = walk.defined_by(difference.args[1], "relax.mean")
    x = difference.args[0]
    if mean is None or _kept_axis(mean, len(centred.ty.shape)) != axis or not same(walk, mean.args[0], x):
        return None
    return x


def _kept_axis(reduction: Any, rank: int) -> int | None:
    if reduction.attrs.axis is None or not reduction.attrs.keepdims:
        return None
    axes = ints(reduction.attrs.axis)
    return positive_axis(axes[0], rank) if len(axes) == 1 else None


def absorb_affine(walk: Walk, call: Any) -> Expr | None:
    """`layer_norm(x, g, b) * c` and `... + c` -> the constant in g and b; `rms_norm(x, g) * c` likewise."""
    data, constant = call.args if is_const(call.args[1]) else (call.args[1], call.args[0])
    norm = walk.definition(data)
    name = op_name(norm)
    if name not in ("relax.nn.layer_norm", "relax.nn.rms_norm") or not is_const(constant):
        return None
    if not walk.has_one_use(data) or shape_of(data) is None or shape_of(data) != shape_of(call):
        return None
    axes = ints(norm.attrs.axes)
    params = [array_of(arg) for arg in norm.args[1:]]
    if len(axes) != 1 or any(p is None for p in params):
        return None
    axis = positive_axis(axes[0], len(call.ty.shape))
    vector = channel_vector(constant, data, axis)
    if vector is None:
        return None
    dtype = dtype_of(norm.args[1])
    gamma = np.asarray(params[0]).astype(np.float64)
    is_product = op_name(call) == "relax.multiply"
    if name == "relax.nn.rms_norm":
        if not is_product:
            return None
        return relax.op.nn.rms_norm(norm.args[0], make_const((gamma * vector).astype(dtype)), axes, norm.attrs.epsilon)
    beta = np.asarray(params[1]).astype(np.float64)
    gamma, beta = (gamma * vector, beta * vector) if is_product else (gamma, beta + vector)
    return relax.op.nn.layer_norm(
        norm.args[0], make_const(gamma.astype(dtype)), make_const(beta.astype(dtype)), axes, float(norm.attrs.epsilon)
    )


NORMS: Rules = {
    "relax.divide": (recognise_norm,),
    "relax.multiply": (recognise_norm, absorb_affine),
    "relax.add": (absorb_affine,),
}


def recognise_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """LayerNorm and RMSNorm that were written out -> one operator each."""
    return rewrite(mod, NORMS)
