"""GELU in 12 instructions, where a kernel stores nothing wider than 16 bits.

x (erf(x / sqrt(2)) / 2 + 1/2) = x sat(x p(sat(x^2 / 18)) + 1/2),   p of degree 8,   sat(y) = y within [0, 1]

The units for multiply-adds saturate for nothing. Behind a product of halves the instructions of GELU take as long as
the product: erf with its two bounds, and what is around it, are 17. By least squares, weighted until all errors are
alike: 4.8e-5 at most; of a number beyond sqrt(18) it is the number or nothing. NaN stays NaN.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.lowering.erf import stores_narrow
from subtune.tir.expressions import is_same, number

EDGE = math.sqrt(18.0)
COEFFICIENTS = (
    0.398904264, -1.1943146, 3.18225455, -6.47866917, 9.85736942, -10.7372723, 7.79541969, -3.33840013, 0.632559836,
)  # fmt: skip
_SOURCE = """
static __forceinline__ __device__ void subtune_gelu_declared() {{}}
static __forceinline__ __device__ float subtune_gelu(float x) {{
  float t = __saturatef(x * x * {scale!r}f);
  float p = {last!r}f;
{steps}
  return x * __saturatef(fmaf(p, x, 0.5f));
}}
"""


@tvm.transform.module_pass(opt_level=0, name="subtune.ShortGelu")  # type: ignore[untyped-decorator]
def short_gelu(mod: IRModule, _context: PassContext) -> IRModule:
    """Before `polynomial_erf`, which takes what is left."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _replaced(func) if isinstance(func, PrimFunc) and stores_narrow(func) else func
    return result


def source() -> str:
    steps = "\n".join(f"  p = fmaf(p, t, {c!r}f);" for c in reversed(COEFFICIENTS[:-1]))
    return _SOURCE.format(scale=1 / EDGE**2, last=COEFFICIENTS[-1], steps=steps)


def _replaced(func: PrimFunc) -> PrimFunc:
    found = False

    def multiplied(node: Any) -> Any:
        nonlocal found
        dtype = str(node.ty)
        if dtype.partition("x")[0] != "float32":
            return node
        for x, other in ((node.a, node.b), (node.b, node.a)):
            if _is_half_of_one_and_erf(other, x):
                found = True
                return tirx.call_pure_extern(dtype, "subtune_gelu", x)  # of vectors lane by lane
        return node

    body = tvm_ffi.structural_map(func.body, (tirx.Mul, multiplied))
    if not found:
        return func
    from tvm.backend.cuda.op import cuda_func_call

    declared = tirx.Evaluate(cuda_func_call("subtune_gelu_declared", source_code=source()))
    return func.with_body(tirx.SeqStmt([declared, body]))


def _is_half_of_one_and_erf(value: Any, x: Any) -> bool:
    """1/2 + erf(x / sqrt(2)) / 2"""
    half = _scaled(value.a if number(_plain(value.b)) == 0.5 else value.b, 0.5) if _has_half(value) else None
    if not isinstance(half, ir.Call) or str(getattr(half.op, "name", "")) != "tirx.erf":
        return False
    inner = _scaled(half.args[0], math.sqrt(0.5))
    return inner is not None and is_same(inner, x)


def _has_half(value: Any) -> bool:
    return isinstance(value, tirx.Add) and 0.5 in (number(_plain(value.a)), number(_plain(value.b)))


def _scaled(value: Any, by: float) -> Any:
    """y where `value` is y times `by`, else None."""
    if not isinstance(value, tirx.Mul):
        return None
    for y, factor in ((value.a, value.b), (value.b, value.a)):
        if math.isclose(number(_plain(factor)), by, rel_tol=1e-6):
            return y
    return None


def _plain(value: Any) -> Any:
    """The number that a vector holds in every lane."""
    return value.value if isinstance(value, tirx.Broadcast) else value
