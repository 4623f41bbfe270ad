"""The hardware's short functions of floats, where a kernel stores nothing wider than 16 bits.

CUDA's own `expf`, `logf`, `tanhf` and quotients are right to a bit or two, and take up to ten times the instructions
of the hardware's, whose errors (CUDA C++ Programming Guide, intrinsic functions: 2^-21 to 2^-22 of 1) no half shows.
What stores float32 keeps CUDA's own, and is as close to float64 as PyTorch is: so the compiler is not told
`--use_fast_math`, which replaces them everywhere (with nvcc 13 a tanh of float32 by one of 11 bits).

tanh(x) = 1 - 2 / (exp(2 x) + 1),   near 0 its Taylor series: the difference has no digits left there
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.lowering.device_functions import stores_narrow, with_source

SHORT_FUNCTIONS = """
#ifndef SUBTUNE_SHORT_FUNCTIONS
#define SUBTUNE_SHORT_FUNCTIONS
static __forceinline__ __device__ float subtune_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
static __forceinline__ __device__ float subtune_tanh(float x) {
  const float t = x * x, y = 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
  return t < 0.0625f ? fmaf(x * t, fmaf(t, fmaf(t, -0.05396825f, 0.13333333f), -0.33333333f), x) : y;
}
#endif
"""
_SHORT = {
    "exp": "__expf", "log": "__logf", "log2": "__log2f", "log10": "__log10f", "pow": "__powf",
    "sigmoid": "subtune_sigmoid", "tanh": "subtune_tanh",
}  # fmt: skip
_DECLARED = f"static __forceinline__ __device__ void subtune_short_functions_declared() {{}}{SHORT_FUNCTIONS}"

_exact: ContextVar[bool] = ContextVar("exact", default=False)


@contextmanager
def every_function_exact(is_exact: bool) -> Iterator[None]:
    """Inside, kernels keep CUDA's own functions whatever they store."""
    token = _exact.set(is_exact)
    try:
        yield
    finally:
        _exact.reset(token)


def is_exact() -> bool:
    return _exact.get()


@tvm.transform.module_pass(opt_level=0, name="subtune.ShortFloatFunctions")  # type: ignore[untyped-decorator]
def short_float_functions(mod: IRModule, _context: PassContext) -> IRModule:
    """Before LowerIntrin, which makes CUDA's own of them."""
    if is_exact():
        return mod
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _replaced(func) if isinstance(func, PrimFunc) and stores_narrow(func) else func
    return result


def _replaced(func: PrimFunc) -> PrimFunc:
    names: set[str] = set()

    def short(node: Any, name: str, *args: Any) -> Any:
        names.add(name)
        return tirx.call_pure_extern(str(node.ty), name, *args)  # of vectors lane by lane

    def called(node: Any) -> Any:
        name = str(getattr(node.op, "name", "")).removeprefix("tirx.")
        return short(node, _SHORT[name], *node.args) if name in _SHORT and _is_float32(node) else node

    def divided(node: Any) -> Any:
        return short(node, "__fdividef", node.a, node.b) if _is_float32(node) else node

    body = tvm_ffi.structural_map(func.body, [(ir.Call, called), (tirx.Div, divided)])
    if not names:
        return func
    if any(name.startswith("subtune_") for name in names):
        return with_source(func, body, "subtune_short_functions_declared", _DECLARED)
    return func.with_body(body)


def _is_float32(node: Any) -> bool:
    return str(node.ty).partition("x")[0] == "float32"
