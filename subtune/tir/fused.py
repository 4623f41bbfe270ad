"""a * b + c, rounded once, on every target: TVM lowers its own operator for CPUs only.

Told how to lower that for CUDA, it makes one of every product that is added to something, integers among them.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from subtune.tir.operators import register

NAME = "tirx.subtune_fma"


def fma(a: Any, b: Any, c: Any) -> Any:
    """All float32."""
    return ir.Call(ir.Op.get(NAME), [a, b, c], ret_ty=ir.PrimType("float32"))


register(
    NAME,
    lambda call: tirx.call_llvm_pure_intrin(str(call.ty), "llvm.fmuladd", *call.args),
    cuda=lambda call: tirx.call_pure_extern(str(call.ty), "__fmaf_rn", *call.args),
)
