"""BatchNorm of an inference graph, and every per-channel scale, folded into the weights before it.

    batch_norm(conv(x, W) + b)   ->   conv(x, W * s) + (b * s + t)      s = gamma / sqrt(var + eps)
    batch_norm(x)                ->   x * s + t                         t = beta - mean * s

for convolutions, transposed convolutions and matmuls with constant weights whose result nobody else reads. Everything
is computed in float64 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, TupleGetItem

from subtune.passes.channels import channel_vector, on_axis
from subtune.passes.exprs import (
    Expr,
    array_of,
    dtype_of,
    is_const,
    is_float,
    make_const,
    op_name,
    positive_axis,
    shape_of,
)
from subtune.passes.rewriter import Rules, Walk, rewrite


def fold_batch_norm(walk: Walk, projection: TupleGetItem) -> Expr | None:
    """The rule on `batch_norm(...)[0]`."""
    norm = walk.definition(projection.tuple_value)
    if op_name(norm) != "relax.nn.batch_norm" or int(projection.index) != 0:
        return None
    if bool(norm.attrs.training):
        return None  # uses the statistics of the batch
    data = norm.args[0]
    shape, dtype = shape_of(data), dtype_of(data)
    params = [array_of(arg) for arg in norm.args[1:]]
    if shape is None or not is_float(dtype) or any(p is None for p in params):
        return None
    gamma, beta, mean, var = (np.asarray(p).astype(np.float64) for p in params)
    scale = 1.0 / np.sqrt(var + float(norm.attrs.epsilon))
    if bool(norm.attrs.scale):
        scale = scale * gamma
    shift = -mean * scale
    if bool(norm.attrs.center):
        shift = shift + beta
    axis = positive_axis(norm.attrs.axis, len(shape))
    folded = _scaled(walk, data, axis, scale, shift)
    if folded is not None:
        return folded
    return relax.op.add(
        relax.op.multiply(data, _constant(scale, axis, len(shape), dtype)), _constant(shift, axis, len(shape), dtype)
    )


def fold_scale(walk: Walk, call: Call) -> Expr | None:
    """`conv(x, W) * s` -> `conv(x, W * s)`, and the same for a division, bias in between or not."""
    data, factor = call.args
    if is_const(data) and op_name(call) == "relax.multiply":
        data, factor = factor, data
    if not is_const(factor) or not is_float(dtype_of(call)) or shape_of(data) != shape_of(call):
        return None
    axis = _channel_axis(_producer(walk, data))
    if axis is None:
        return None
    vector = channel_vector(factor, data, axis)
    if vector is None or (op_name(call) == "relax.divide" and (vector == 0).any()):
        return None
    return _scaled(walk, data, axis, 1.0 / vector if op_name(call) == "relax.divide" else vector, None)


def merge_biases(walk: Walk, call: Call) -> Expr | None:
    """`(conv(x, W) + b) + c` -> `conv(x, W) + (b + c)` for constants b and c, one number per channel."""
    data, bias = call.args if is_const(call.args[1]) else (call.args[1], call.args[0])
    inner = walk.defined_by(data, "relax.add")
    if inner is None or not walk.has_one_use(data) or not is_float(dtype_of(call)):
        return None
    axis = _channel_axis(_producer(walk, data))
    source, first = _split_bias(inner)
    if axis is None or first is None or not is_const(bias) or shape_of(source) != shape_of(call):
        return None
    a, b = channel_vector(first, source, axis), channel_vector(bias, source, axis)
    if a is None or b is None:
        return None
    return relax.op.add(source, _constant(a + b, axis, len(call.ty.shape), dtype_of(call)))


def _scaled(walk: Walk, data: Expr, axis: int, scale: np.ndarray, shift: np.ndarray | None) -> Expr | None:
    """`data * scale + shift` with the scale in the weights that made `data`, or None."""
    bias = None
    found = walk.definition(data)
    if op_name(found) == "relax.add":
        if not walk.has_one_use(data):
            return None
        source, bias_const = _split_bias(found)
        if bias_const is None or shape_of(source) != shape_of(data):
            return None
        bias = channel_vector(bias_const, data, axis)
        if bias is None:
            return None
        data, found = source, walk.definition(source)
    if _channel_axis(found) != axis or not walk.has_one_use(data):
        return None
    weight = _scaled_weight(found, scale)
    if weight is None:
        return None
    result: Expr = tvm.ir.Call(found.op, [found.args[0], weight], found.attrs, found.ty_args)
    if bias is None and shift is None:
        return result
    total = (bias * scale if bias is not None else 0.0) + (shift if shift is not None else 0.0)
    return relax.op.add(result, _constant(np.asarray(total), axis, len(found.ty.shape), dtype_of(found)))


def _producer(walk: Walk, data: Expr) -> Expr:
    """The call that computed `data`, looking through the addition of a constant."""
    found = walk.definition(data)
    if op_name(found) == "relax.add":
        source, bias = _split_bias(found)
        if bias is not None:
            return walk.definition(source)
    return found


def _split_bias(add: Any) -> tuple[Expr, Expr | None]:
    """The varying and the constant operand of an addition; None for the latter if both vary."""
    if is_const(add.args[1]):
        return add.args[0], add.args[1]
    if is_const(add.args[0]):
        return add.args[1], add.args[0]
    return add.args[0], None


def _channel_axis(producer: Expr) -> int | None:
    """The axis of the output channels of a convolution or matmul, or None for anything else."""
    name = op_name(producer)
    if name == "relax.matmul":
        return len(producer.ty.shape) - 1 if shape_of(producer) else None
    if not name.startswith("relax.nn.conv"):
        return None
    return str(producer.attrs.out_layout).find("C")


def _scaled_weight(producer: Any, scale: np.ndarray) -> Expr | None:
    """The constant weights of `producer` times `scale` along the output channels."""
    weight = array_of(producer.args[1])
    if weight is None or not is_float(str(weight.dtype)):
        return None
    if op_name(producer) == "relax.matmul":
        if weight.ndim != 2:
            return None
        return make_const(rounded_once(weight, scale))
    layout, groups = str(producer.attrs.kernel_layout), int(producer.attrs.groups)
    out_axis = layout.find("O")
    if weight.shape[out_axis] == scale.size:
        return make_const(rounded_once(weight, on_axis(scale, out_axis, weight.ndim)))
    # A grouped transposed convolution: input channels hold the groups, output channels repeat in each.
    in_axis = layout.find("I")
    if in_axis != 0 or out_axis != 1 or weight.shape[1] * groups != scale.size:
        return None
    split = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    factor = scale.reshape(groups, 1, weight.shape[1], *[1] * (weight.ndim - 2))
    return make_const(rounded_once(split, factor).reshape(weight.shape))


def rounded_once(weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """`weight * factor` in float64, in weight's type, without a float64 copy of the weights."""
    out = np.empty(weight.shape, weight.dtype)
    return np.multiply(weight, factor, out=out, dtype=np.float64, casting="unsafe")


def _constant(vector: np.ndarray, axis: int, rank: int, dtype: str) -> Expr:
    return make_const(on_axis(vector, axis, rank).astype(dtype))


BATCH_NORM: Rules = {
    "tuple_get_item": (fold_batch_norm,),
    "relax.multiply": (fold_scale,),
    "relax.divide": (fold_scale,),
    "relax.add": (merge_biases,),
}


def fold_scales(mod: tvm.IRModule) -> tvm.IRModule:
    """BatchNorm and per-channel scales and shifts, into the weights where possible."""
    return rewrite(mod, BATCH_NORM)
