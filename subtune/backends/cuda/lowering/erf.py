"""erf without special functions: a polynomial in registers, half of what CUDA's `erff` takes behind a product.

erf(x) = y * p(2 (y / edge)^2 - 1),   y = x within [-edge, edge]

Where a kernel stores nothing wider than 16 bits, a shorter p does: behind a product of halves the instructions of GELU
take as long as the product. By least squares, weighted until all errors are alike; in float32, against float64:

                  edge   degree   error at most   of erf(x), |x| < 0.5   beyond the edge
    stored wide    3.8       14          1.7e-7                 4.8e-7   1
    stored narrow  3.0        8          2.2e-5                 9.5e-5   1

NaN stays NaN. Beyond the edge it is 1 to the last bit, so that infinity times what is left of 1 is no number, as it
should be: the last product is rounded, and not made one with a sum that follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.lowering.device_functions import stores_narrow, with_source


@dataclass(frozen=True, slots=True)
class Polynomial:
    """`coefficients` of t, the constant first. `name` of the function that CUDA C++ gets, which returns `result`."""

    name: str
    edge: float
    coefficients: tuple[float, ...]
    result: str


WIDE = Polynomial(
    "subtune_erf",
    3.8,
    (
        0.372107625, -0.185641214, 0.137739554, -0.111185186, 0.0908318385, -0.0725192428, 0.0550632104,
        -0.038924519, 0.0266694762, -0.0183625575, 0.00999132358, -0.00327260862, 0.00233119074, -0.00270513585,
        0.00103413174,
    ),
    "fabsf(x) > {edge}f ? copysignf(1.0f, x) : p * y",
)  # fmt: skip
NARROW = Polynomial(
    "subtune_erf_narrow",
    3.0,
    (
        0.47012946, -0.22872974, 0.157571524, -0.111133635, 0.0722947121, -0.0397477895, 0.0238179378,
        -0.0178579967, 0.00698886486,
    ),
    "__fmul_rn(p, y)",
)  # fmt: skip
_SOURCE = """
static __forceinline__ __device__ void {name}_declared() {{}}
static __forceinline__ __device__ float {name}(float x) {{
  float y = x > {edge}f ? {edge}f : x < -{edge}f ? -{edge}f : x;
  float t = fmaf(y * y, {scale!r}f, -1.0f);
  float p = {last!r}f;
{steps}
  return {result};
}}
"""


@tvm.transform.module_pass(opt_level=0, name="subtune.PolynomialErf")  # type: ignore[untyped-decorator]
def polynomial_erf(mod: IRModule, _context: PassContext) -> IRModule:
    """Before LowerIntrin, which makes CUDA's own of it."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _replaced(func) if isinstance(func, PrimFunc) else func
    return result


def source(of: Polynomial) -> str:
    steps = "\n".join(f"  p = fmaf(p, t, {c!r}f);" for c in reversed(of.coefficients[:-1]))
    result = of.result.format(edge=of.edge)
    return _SOURCE.format(
        name=of.name, edge=of.edge, result=result, scale=2 / of.edge**2, last=of.coefficients[-1], steps=steps
    )


def _replaced(func: PrimFunc) -> PrimFunc:
    found = False
    polynomial = NARROW if stores_narrow(func) else WIDE

    def called(node: Any) -> Any:
        nonlocal found
        dtype = str(node.ty)
        if str(getattr(node.op, "name", "")) != "tirx.erf" or dtype.partition("x")[0] != "float32":
            return node
        found = True
        return tirx.call_pure_extern(dtype, polynomial.name, *node.args)  # of vectors lane by lane

    body = tvm_ffi.structural_map(func.body, (ir.Call, called))
    if not found:
        return func
    return with_source(func, body, f"{polynomial.name}_declared", source(polynomial))
