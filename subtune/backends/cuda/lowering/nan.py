"""Maxima and minima that keep NaN, as ONNX's do; what C++ calls `max` returns the number.

max(x, y)  ->  subtune_max(x, y)      one instruction from compute capability 8.0 on

Run on what is about to be printed: the simplifier knows Max, and no calls.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

_NAMES: dict[Any, str] = {tirx.Max: "max", tirx.Min: "min"}
_TYPES = {
    "float32": ("float", '{ float z; asm("@.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y)); return z; }'),
    "float16": ("half", "return __h@_nan(x, y);"),
    "bfloat16": ("nv_bfloat16", "return __h@_nan(x, y);"),
    "float64": ("double", ""),
}
"""What CUDA C++ calls them, and the statement that newer GPUs have."""

_SOURCE = """
static __forceinline__ __device__ void subtune_nan_{dtype}() {{}}
static __forceinline__ __device__ {type} subtune_max({type} x, {type} y) {{
#if {is_new}
  {max}
#else
  return x > y || x != x ? x : y;
#endif
}}
static __forceinline__ __device__ {type} subtune_min({type} x, {type} y) {{
#if {is_new}
  {min}
#else
  return x < y || x != x ? x : y;
#endif
}}
"""


@tvm.transform.module_pass(opt_level=0, name="subtune.NaNKept")  # type: ignore[untyped-decorator]
def nan_kept(mod: IRModule, _context: PassContext) -> IRModule:
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _kept(func) if isinstance(func, tirx.PrimFunc) else func
    return result


def _kept(func: PrimFunc) -> PrimFunc:
    used: set[str] = set()

    def called(node: Any) -> Any:
        dtype = str(node.ty).partition("x")[0]
        if dtype not in _TYPES:
            return node
        used.add(dtype)
        name = f"subtune_{_NAMES[type(node)]}"
        return tirx.call_pure_extern(str(node.ty), name, node.a, node.b)  # of vectors lane by lane

    body = tvm_ffi.structural_map(func.body, (tuple(_NAMES), called))
    if not used:
        return func
    return func.with_body(tirx.SeqStmt([*(_declared(dtype) for dtype in sorted(used)), body]))


def _declared(dtype: str) -> tirx.Evaluate:
    """A call of nothing, whose source are the functions that the kernel calls."""
    from tvm.backend.cuda.op import cuda_func_call

    name, statement = _TYPES[dtype]
    is_new = "defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800" if statement else "0"
    texts = {of: statement.replace("@", of) for of in _NAMES.values()}
    source = _SOURCE.format(dtype=dtype, type=name, is_new=is_new, **texts)
    return tirx.Evaluate(cuda_func_call(f"subtune_nan_{dtype}", source_code=source))
