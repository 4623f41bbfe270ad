"""a * b + c and a / b, rounded once, on every target.

TVM lowers its own operator for a * b + c for CPUs only. Told how to lower that for CUDA, it makes one of every product
that is added to something, integers among them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx

from subtune.tir.operators import register

NAME = "tirx.subtune_fma"
QUOTIENT = "tirx.subtune_quotient"


def fma(a: Any, b: Any, c: Any) -> Any:
    """All float32."""
    return ir.Call(ir.Op.get(NAME), [a, b, c], ret_ty=ir.PrimType("float32"))


def quotient(value: Any, step: Any) -> Any:
    """value / step, both float32: one division for all elements of a tensor, if `step` is the same for them.

    A product with the reciprocal and a correction (Markstein, 1990), written out when the kernel is lowered: `value`
    stands there three times, and a chain of ten of them would be an expression of 3^10 parts.
    """
    return ir.Call(ir.Op.get(QUOTIENT), [value, step], ret_ty=ir.PrimType("float32"))


def by_reciprocal(value: Any, step: Any, fused: Callable[[Any, Any, Any], Any]) -> Any:
    """The same as an expression of products and of `fused`, a * b + c; `value` and `step` of one type."""
    inverse = tirx.const(1.0, str(step.ty)) / step
    first = value * inverse
    return fused(fused(tirx.const(0.0, str(step.ty)) - step, first, value), inverse, first)


def _quotient_in_llvm(call: Any) -> Any:
    dtype = str(call.ty)

    def fused(a: Any, b: Any, c: Any) -> Any:
        return tirx.call_llvm_pure_intrin(dtype, "llvm.fmuladd", a, b, c)

    named = tirx.Var("value", dtype)
    return tirx.Let(named, call.args[0], by_reciprocal(named, call.args[1], fused))


register(QUOTIENT, _quotient_in_llvm, cuda=lambda call: call.args[0] / call.args[1])
register(
    NAME,
    lambda call: tirx.call_llvm_pure_intrin(str(call.ty), "llvm.fmuladd", *call.args),
    cuda=lambda call: tirx.call_pure_extern(str(call.ty), "__fmaf_rn", *call.args),
)
