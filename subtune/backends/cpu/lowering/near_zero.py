"""Functions that are as small as their argument near zero, by the system's library.

TVM writes them as differences of exponentials and logarithms, which have no digits left there: tanh(1e-8) is 0. What
tuned kernels compute instead is in `math.vector_math`; this is for what that leaves, default schedules and `--exact`.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

_FUNCTIONS = frozenset({"tanh", "sinh", "asinh", "atanh"})
_SUFFIXES = {"float32": "f", "float64": ""}


def digits_kept() -> Any:
    """The pass."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, _by_library)))

    return run


def _by_library(call: Any) -> Any:
    name = call.op.name.rpartition(".")[2] if isinstance(call.op, ir.Op) else ""
    dtype = str(call.ty.dtype) if name in _FUNCTIONS else ""
    if dtype not in _SUFFIXES:
        return call
    return tirx.call_pure_extern(dtype, name + _SUFFIXES[dtype], *call.args)
