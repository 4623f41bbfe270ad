"""LayerNorm, InstanceNorm and RMSNorm that are written out, as the one operator they are.

    d = x - mean(x);  d / sqrt(mean(d * d) + eps) * g + b   ->  layer_norm(x, g, b) over one axis,
                                                                instance_norm(x, g, b) over all but batch and channel
    x / sqrt(mean(x * x) + eps) * g                         ->  rms_norm(x, g) over the last axis

A reduction with its elementwise tail is then one anchor instead of nine operators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

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


def recognise_norm(walk: Walk, call: Call) -> Expr | None:
    """The rule on `d / sqrt(...)`, `d * rsqrt(...)` and `d * (1 / sqrt(...))`."""
    shape, dtype = shape_of(call), dtype_of(call)
    if shape is None or not is_float(dtype):
        return None
    for centred, power in _quotients(walk, call):
        axes, epsilon = _mean_square(walk, power, centred, len(shape))
        if not axes or shape_of(centred) != shape:
            continue
        x = _uncentred(walk, centred, axes)
        kept = [axis for axis in range(len(shape)) if axis not in axes]
        if len(axes) == 1:
            extent = shape[axes[0]]
        elif x is not None and len(kept) == 2 and kept[0] == 0:
            extent = shape[kept[1]]
        else:
            continue
        ones, zeros = make_const(np.ones(extent, dtype)), make_const(np.zeros(extent, dtype))
        if len(axes) > 1:
            return relax.op.nn.instance_norm(x, ones, zeros, kept[1], list(axes), epsilon)
        if x is not None:
            return relax.op.nn.layer_norm(x, ones, zeros, list(axes), epsilon)
        if axes[0] == len(shape) - 1:
            return relax.op.nn.rms_norm(centred, ones, list(axes), epsilon)
    return None


def _quotients(walk: Walk, call: Call) -> list[tuple[Expr, Expr]]:
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


def _mean_square(walk: Walk, power: Expr, centred: Expr, rank: int) -> tuple[tuple[int, ...], float]:
    """(axes, eps) when `power` is `mean(centred ** 2, axes) + eps`, or `variance` of what `centred` centres."""
    total = walk.defined_by(power, "relax.add")
    if total is None:
        return (), 0.0
    mean, epsilon = total.args[0], scalar_of(total.args[1])
    if epsilon is None:
        mean, epsilon = total.args[1], scalar_of(total.args[0])
    reduction = walk.definition(mean)
    if epsilon is None or op_name(reduction) not in ("relax.mean", "relax.variance"):
        return (), 0.0
    axes = _kept_axes(reduction, rank)
    if op_name(reduction) == "relax.variance":
        source = _uncentred(walk, centred, axes)
        return (axes, epsilon) if source is not None and same(walk, reduction.args[0], source) else ((), 0.0)
    return (axes, epsilon) if _is_square(walk, reduction.args[0], centred) else ((), 0.0)


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


def _uncentred(walk: Walk, centred: Expr, axes: tuple[int, ...]) -> Expr | None:
    """x when `centred` is `x - mean(x, axes)`."""
    difference = walk.defined_by(centred, "relax.subtract")
    if difference is None:
        return None
    mean = walk.defined_by(difference.args[1], "relax.mean")
    x = difference.args[0]
    if mean is None or _kept_axes(mean, len(centred.ty.shape)) != axes or not same(walk, mean.args[0], x):
        return None
    return x


def _kept_axes(reduction: Any, rank: int) -> tuple[int, ...]:
    """The axes, ascending, of a reduction that keeps them as unit dims; empty for any other."""
    if reduction.attrs.axis is None or not reduction.attrs.keepdims:
        return ()
    return tuple(sorted(positive_axis(axis, rank) for axis in ints(reduction.attrs.axis)))


def recognise_group_norm(walk: Walk, call: Call) -> Expr | None:
    """The rule on reshape: `reshape(instance_norm(reshape(x, [N, G, ...])), shape of x)`, as PyTorch exports it."""
    norm = walk.defined_by(call.args[0], "relax.nn.instance_norm")
    if norm is None or not walk.has_one_use(call.args[0]):
        return None
    inner = walk.defined_by(norm.args[0], "relax.reshape")
    if inner is None:
        return None
    x, shape, split = inner.args[0], shape_of(call), shape_of(inner)
    params = [array_of(arg) for arg in norm.args[1:]]
    if shape is None or split is None or shape_of(x) != shape or len(shape) < 3 or any(p is None for p in params):
        return None
    axes = [positive_axis(axis, len(split)) for axis in ints(norm.attrs.axes)]
    groups = split[1]
    if axes != list(range(2, len(split))) or positive_axis(norm.attrs.channel_axis, len(split)) != 1:
        return None
    if split[0] != shape[0] or shape[1] % groups:
        return None
    values = (make_const(np.repeat(np.asarray(p), shape[1] // groups)) for p in params)
    return relax.op.nn.group_norm(x, *values, groups, 1, list(range(2, len(shape))), float(norm.attrs.epsilon))


def absorb_affine(walk: Walk, call: Call) -> Expr | None:
    """`layer_norm(x, g, b) * c` and `... + c` -> the constant in g and b; the other norms likewise."""
    data, constant = call.args if is_const(call.args[1]) else (call.args[1], call.args[0])
    norm = walk.definition(data)
    name = op_name(norm)
    if name not in _AFFINE or not is_const(constant) or not walk.has_one_use(data):
        return None
    if shape_of(data) is None or shape_of(data) != shape_of(call):
        return None
    axis = _affine_axis(norm)
    params = [array_of(arg) for arg in norm.args[1:]]
    if axis is None or any(p is None for p in params):
        return None
    vector = channel_vector(constant, data, axis)
    if vector is None:
        return None
    gamma, *beta = (np.asarray(p).astype(np.float64) for p in params)
    if op_name(call) == "relax.multiply":
        values = [gamma * vector, *(b * vector for b in beta)]
    elif beta:
        values = [gamma, beta[0] + vector]
    else:
        return None  # rms_norm has no shift
    dtype = dtype_of(norm.args[1])
    return tvm.ir.Call(
        norm.op, [norm.args[0], *(make_const(v.astype(dtype)) for v in values)], norm.attrs, norm.ty_args
    )


_AFFINE = ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.instance_norm", "relax.nn.group_norm")


def _affine_axis(norm: Any) -> int | None:
    """The axis along which the norm's scale and shift lie, if it is one."""
    rank = len(norm.ty.shape)
    if op_name(norm) in ("relax.nn.instance_norm", "relax.nn.group_norm"):
        return positive_axis(norm.attrs.channel_axis, rank)
    axes = ints(norm.attrs.axes)
    return positive_axis(axes[0], rank) if len(axes) == 1 else None


NORMS: Rules = {
    "relax.divide": (recognise_norm,),
    "relax.multiply": (recognise_norm, absorb_affine),
    "relax.add": (absorb_affine,),
    "relax.reshape": (recognise_group_norm,),
}


def recognise_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """LayerNorm, RMSNorm and GroupNorm that were written out -> one operator each."""
    return rewrite(mod, NORMS)
