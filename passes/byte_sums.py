"""Sums of two quantised tensors, rounded as ONNX Runtime's kernel for them rounds (QLinearAdd, qladd_avx2.cpp).

    quantize(dequantize(a) + dequantize(b), s, z)  ->  round(a ra + (b rb + rest))
    ra = sa / s    rb = sb / s    rest = z - (za ra + zb rb)

Products are added by FMAs: there, and here where LLVM and nvcc contract them. As ONNX's operators are written it would
be a division more; where a sum lies in the middle between two bytes, the two ways differ by a step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.byte_sums import rest_of_sum
from subtune.core.numerics import BYTES
from subtune.passes.byte_means import mean_of_bytes
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const, shape_of
from subtune.passes.integer_operands import Quantised, quantised, quantises
from subtune.passes.rewriter import Walk, rewrite


def byte_sums(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with sums of bytes as sums of multiples, and their means as means of integers."""
    return rewrite(mod, {"relax.quantize": (_summed, mean_of_bytes)}) if quantises(mod) else mod


def _summed(walk: Walk, call: Call) -> Expr | None:
    total = walk.defined_by(call.args[0], "relax.add")
    scale, zero = array_of(call.args[1]), array_of(call.args[2])
    if total is None or scale is None or zero is None or scale.size > 1 or dtype_of(call) not in BYTES:
        return None
    first, second = (quantised(walk, arg) for arg in total.args)
    if first is None or second is None or not (first.is_whole and second.is_whole):
        return None
    if {dtype_of(first.values), dtype_of(second.values)} != {dtype_of(call)} or array_of(first.values) is not None:
        return None
    if _is_column(first.values) and not _is_column(second.values):
        first, second = second, first  # what is the same along a row is added first
    step = scale.reshape(()).astype(np.float32)
    with np.errstate(over="ignore"):
        ra, rb = (one.scale.reshape(()).astype(np.float32) / step for one in (first, second))
    if not (0 < ra < np.inf and 0 < rb < np.inf):
        return None
    rest = rest_of_sum((ra, first.zero.reshape(())), (rb, second.zero.reshape(())), zero.reshape(()))
    added = relax.op.add(_times(second, rb), make_const(np.asarray(rest, np.float32)))
    made = relax.op.add(_times(first, ra), added)
    nothing = make_const(np.zeros((), dtype_of(call)))
    return relax.op.quantize(made, make_const(np.ones((), np.float32)), nothing, axis=0, out_dtype=dtype_of(call))


def _times(given: Quantised, factor: Any) -> Expr:
    nothing = np.zeros((), dtype_of(given.values))
    return replace(given, scale=np.asarray(factor), zero=nothing).again(given.values)


def _is_column(values: Expr) -> bool:
    return (shape_of(values) or ())[-1:] in ((), (1,))
