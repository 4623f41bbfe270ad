"""Means of quantised tensors, rounded as ONNX Runtime's kernels do (qlgavgpool.cpp, qlinear_pool.cc).

    quantize(mean(dequantize(x)), s, z)      ->  round((sum(x) - n zx) f) + z           f = sx / (s n)
    quantize(avg_pool(dequantize(x)), s, z)  ->  round(avg_pool(dequantize(x)) / s + z)

Means of few bytes often lie in the middle between two: as ONNX's operators are written, an odd zero point, or the last
bits of a sum of floats, lead to another step than there.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.numerics import BYTES
from subtune.passes.exprs import Expr, array_of, dtype_of, ints, make_const, op_name, shape_of
from subtune.passes.integer_operands import Quantised, quantised
from subtune.passes.rewriter import Walk

AVERAGE_POOLS = tuple(f"relax.nn.avg_pool{n}d" for n in (1, 2, 3))
_MOST = 1 << 23
"""Of a sum: float32 holds it exactly."""


def mean_of_bytes(walk: Walk, call: Call) -> Expr | None:
    """The rule on quantisations of a mean, or of an average pool, of what was dequantised."""
    made, scale, zero = walk.definition(call.args[0]), array_of(call.args[1]), array_of(call.args[2])
    if op_name(made) not in ("relax.mean", *AVERAGE_POOLS) or dtype_of(call) not in BYTES:
        return None
    data = quantised(walk, made.args[0])
    if data is None or not data.is_whole or dtype_of(data.values) not in BYTES or scale is None or zero is None:
        return None
    if scale.size > 1 or array_of(data.values) is not None:
        return None
    step = scale.reshape(()).astype(np.float32)
    value = _mean(made, data, step) if op_name(made) == "relax.mean" else _pool(walk, made, data, step, zero)
    if value is None:
        return None
    point = make_const(zero.reshape(()) if op_name(made) == "relax.mean" else np.zeros((), dtype_of(call)))
    return relax.op.quantize(value, make_const(np.ones((), np.float32)), point, axis=0, out_dtype=dtype_of(call))


def _mean(mean: Call, data: Quantised, step: Any) -> Expr | None:
    dims = shape_of(data.values)
    if dims is None:
        return None
    axes = list(range(len(dims))) if mean.attrs.axis is None else [axis % len(dims) for axis in ints(mean.attrs.axis)]
    count = prod(dims[axis] for axis in axes)
    factor = _ratio(data.scale.reshape(()), step * np.float32(count))
    if factor is None or not 0 < count < _MOST // 255:
        return None
    total = relax.op.sum(relax.op.astype(data.values, "int32"), axes, bool(mean.attrs.keepdims))
    point = int(data.zero.reshape(())) * count
    total = total if not point else relax.op.subtract(total, make_const(np.asarray(point, np.int32)))
    return relax.op.multiply(relax.op.astype(total, "float32"), make_const(factor))


def _pool(walk: Walk, pool: Call, data: Quantised, step: Any, zero: np.ndarray) -> Expr:
    least = np.iinfo(dtype_of(data.values)).min - int(data.zero.reshape(()))
    floor = np.asarray(data.scale.reshape(()) * np.float32(least), np.float32)
    # no number is below it; without it scale * (x - zero) would be added by an FMA, unrounded
    bounded = walk.emit(relax.op.maximum(pool.args[0], make_const(floor)))
    mean = walk.emit(tvm.ir.Call(pool.op, [bounded], pool.attrs, pool.ty_args))
    value = walk.emit(relax.op.divide(mean, make_const(np.asarray(step))))
    return relax.op.add(value, make_const(zero.reshape(()).astype(np.float32)))


def _ratio(scale: Any, step: Any) -> np.ndarray | None:
    with np.errstate(over="ignore"):
        found = np.asarray(np.float32(scale) / np.float32(step), np.float32)
    return found if 0 < found < np.inf else None
