"""GELU as a function of its own: short where a kernel stores nothing wider than 16 bits, exact where it does.

Of halves, 7 instructions and a hyperbolic tangent of the hardware's:

    x (erf(x / sqrt(2)) / 2 + 1/2) = h + h tanh(x p(min(x^2, 36))),   h = x / 2,   p of degree 2

Behind a product of halves the instructions of GELU take as long as the product: a polynomial in erf's place is 12, and
BERT's products with it took 2 % longer on an H100. By least squares, weighted until all errors are alike, 2.6e-5 at
most; the hardware's tanh adds 2^-11 of it at most (PTX ISA, tanh.approx), half of which is what a half rounds by.
Beyond 6 it is the number or nothing.

Of floats, as many instructions as `erff` has, and half of its error: of a negative number erf leaves a difference from
one, which loses the digits that its own tail, an exponential, has:

    x (x p(x^2) + 1/2) where |x| < 1.3,   else x q(|x|) or x (1 - q(|x|)),   q(t) = 2^(t r(t) - 1)

By least squares as above: 3.4e-9 and, of what x q(|x|) is, 2.3e-9; in float32 less than 1e-7 of 1 (`test_gelu`).
NaN stays NaN; of minus infinity both are no number, as the formula is.
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

from subtune.backends.cuda.lowering.device_functions import stores_narrow, with_source
from subtune.tir.expressions import is_same, number

EDGE = 6.0  # of halves
COEFFICIENTS = (0.797507891, 0.0370056403, -0.000351516703)
_SOURCE = """
static __forceinline__ __device__ void subtune_gelu_declared() {{}}
static __forceinline__ __device__ float subtune_gelu(float x) {{
  float t = fminf(x * x, {edge!r}f);
  float p = fmaf(fmaf({c2!r}f, t, {c1!r}f), t, {c0!r}f);
  float h = 0.5f * x, y;
#if __CUDA_ARCH__ >= 750
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(p * x));
#else
  y = tanhf(p * x);
#endif
  return fmaf(h, y, h);
}}
"""


TAIL = 1.3  # of floats
MIDDLE_COEFFICIENTS = (0.398942232, -0.0664898083, 0.00997081306, -0.00118161913, 0.000109580345, -6.4605947e-06)
TAIL_COEFFICIENTS = (
    -1.15140438, -0.458088756, -0.0542805381, 0.00862861797, -0.000949106587, 6.1833096e-05, -1.69583029e-06,
)  # fmt: skip
"""Of p and r, the constant first. r's last is below zero: far out q is nothing."""
_WIDE_SOURCE = """
static __forceinline__ __device__ void subtune_wide_gelu_declared() {{}}
static __forceinline__ __device__ float subtune_wide_gelu(float x) {{
  float t = fabsf(x), s = x * x, p = {middle!r}f, r = {tail!r}f;
{steps}
  float q = exp2f(fmaf(r, t, -1.0f));
  return x * (t < {edge!r}f ? fmaf(x, p, 0.5f) : x < 0.0f ? q : 1.0f - q);
}}
"""


@tvm.transform.module_pass(opt_level=0, name="subtune.Gelu")  # type: ignore[untyped-decorator]
def gelu(mod: IRModule, _context: PassContext) -> IRModule:
    """Before `short_erf`, which takes what is left."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _replaced(func) if isinstance(func, PrimFunc) else func
    return result


def source() -> str:
    c0, c1, c2 = COEFFICIENTS
    return _SOURCE.format(edge=EDGE**2, c0=c0, c1=c1, c2=c2)


def wide_source() -> str:
    steps = [f"  p = fmaf(p, s, {c!r}f);" for c in reversed(MIDDLE_COEFFICIENTS[:-1])]
    steps += [f"  r = fmaf(r, t, {c!r}f);" for c in reversed(TAIL_COEFFICIENTS[:-1])]
    return _WIDE_SOURCE.format(
        edge=TAIL, middle=MIDDLE_COEFFICIENTS[-1], tail=TAIL_COEFFICIENTS[-1], steps="\n".join(steps)
    )


def _replaced(func: PrimFunc) -> PrimFunc:
    found = False
    name, text = ("subtune_gelu", source()) if stores_narrow(func) else ("subtune_wide_gelu", wide_source())

    def multiplied(node: Any) -> Any:
        nonlocal found
        dtype = str(node.ty)
        if dtype.partition("x")[0] != "float32":
            return node
        for x, other in ((node.a, node.b), (node.b, node.a)):
            if _is_half_of_one_and_erf(other, x):
                found = True
                return tirx.call_pure_extern(dtype, name, x)  # of vectors lane by lane
        return node

    body = tvm_ffi.structural_map(func.body, (tirx.Mul, multiplied))
    if not found:
        return func
    return with_source(func, body, f"{name}_declared", text)


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
