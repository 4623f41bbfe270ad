"""Casts of vectors from and to float8e4m3fn, which TVM prints as if CUDA's types of them had components (0.27.0.post1).

    cast(float8x4, v)   ->  reinterpret(float8x4, subtune_float8(v))         lane by lane, of bytes
    cast(float32x4, q)  ->  subtune_of_float8(reinterpret(uint8x4, q))
    broadcast(0, 4)     ->  reinterpret(float8x4, broadcast(0, 4) of bytes)

Rounded to the nearest, halves to even; what is too large becomes the largest number, 448, and NaN stays.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from subtune.core.numerics import FLOAT8

_TO, _FROM = "subtune_float8", "subtune_of_float8"
_SOURCE = f"""
static __forceinline__ __device__ unsigned char {_TO}(float x) {{
  return (unsigned char)__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}}
static __forceinline__ __device__ float {_FROM}(unsigned char x) {{
  __nv_fp8_e4m3 y;
  y.__x = x;
  return (float)y;
}}
static __forceinline__ __device__ void subtune_float8_vectors() {{}}
"""


@tvm.transform.module_pass(opt_level=0, name="subtune.Float8Vectors")  # type: ignore[untyped-decorator]
def float8_vectors(mod: IRModule, _context: PassContext) -> IRModule:
    """Run on what is about to be printed, before `printable`."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _rewritten(func) if isinstance(func, tirx.PrimFunc) else func
    return result


def _rewritten(func: Any) -> Any:
    calls = 0

    def cast(node: Any) -> Any:
        nonlocal calls
        to, lanes = _parts(node.ty)
        of, _ = _parts(node.value.ty)
        if lanes == 1 or FLOAT8 not in (to, of):
            return node
        calls += 1
        if to == FLOAT8:
            wide = node.value if of == "float32" else tirx.Cast(f"float32x{lanes}", node.value)
            return tirx.reinterpret(f"{FLOAT8}x{lanes}", tirx.call_pure_extern(f"uint8x{lanes}", _TO, wide))
        found = tirx.call_pure_extern(f"float32x{lanes}", _FROM, tirx.reinterpret(f"uint8x{lanes}", node.value))
        return found if to == "float32" else tirx.Cast(f"{to}x{lanes}", found)

    def filled(node: Any) -> Any:
        if str(node.value.ty) != FLOAT8 or not isinstance(node.value, tirx.FloatImm) or float(node.value) != 0:
            return node
        lanes = int(node.lanes)
        return tirx.reinterpret(f"{FLOAT8}x{lanes}", tirx.Broadcast(tirx.const(0, "uint8"), lanes))

    body = tvm_ffi.structural_map(func.body, [(tirx.Cast, cast), (tirx.Broadcast, filled)])
    if calls:
        body = tirx.SeqStmt([_declared(), body])
    return func.with_body(body)


def _parts(ty: Any) -> tuple[str, int]:
    dtype, _, lanes = str(ty).partition("x")
    return dtype, int(lanes or 1)


def _declared() -> tirx.Evaluate:
    """A call of nothing, whose source are the functions that the kernel calls."""
    from tvm.backend.cuda.op import cuda_func_call

    return tirx.Evaluate(cuda_func_call("subtune_float8_vectors", source_code=_SOURCE))
