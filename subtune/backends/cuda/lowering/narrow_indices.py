"""Indices counted in 32 bits where no buffer has more elements than those count.

Models give their sizes as int64, and so a schedule counts with them; TVM's NarrowDataType, which comes later, leaves
half of it in 64 bits. Divisions of those take dozens of instructions and twice the registers: a 3 x 3 convolution of 64
channels in tiles of 128 x 128 has 129 registers in place of 169, and two blocks on a multiprocessor in place of one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.lowering.settled import at_greatest
from subtune.tir.substitute import substitute
from subtune.tir.walk import found

_MOST = 1 << 30
"""Elements of a buffer: sums of indices may be somewhat more on their way."""


@tvm.transform.module_pass(opt_level=0, name="subtune.NarrowIndices")  # type: ignore[untyped-decorator]
def narrow_indices(mod: IRModule, _context: PassContext) -> IRModule:
    """Run when blocks are gone: TVM leaves the axes of those that are intrinsics as they were, and does not take it
    later."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _narrowed(func) if isinstance(func, PrimFunc) and _is_narrow(func) else func
    return result


def _narrowed(func: PrimFunc) -> PrimFunc:
    return tirx.transform.ForceNarrowIndexToInt32()(tvm.IRModule({"main": func}))["main"]


def _is_narrow(func: PrimFunc) -> bool:
    """Whether its buffers are small enough, and whatever it counts with in 64 bits are indices: TVM takes them for
    that."""
    params = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
    named = [one.buffer for kind in (tirx.AllocBuffer, tirx.DeclBuffer) for one in found(func.body, kind)]
    values = at_greatest(func)
    return all(
        str(buffer.dtype) != "int64" and _elements(buffer, values) <= _MOST for buffer in (*params, *named)
    ) and not any(_is_of_data(one) for kind in (tirx.Cast, ir.Call) for one in found(func.body, kind))


def _is_of_data(value: Any) -> bool:
    """Whether it is a number of 64 bits that depends on what is in memory."""
    return str(getattr(value.ty, "dtype", "")) == "int64" and bool(found(value, ir.TensorLoad))


def _elements(buffer: Any, values: dict[Any, Any]) -> float:
    simple = [tvm.sym.Analyzer().simplify(substitute(extent, values)) for extent in buffer.shape]
    return prod(int(extent) if isinstance(extent, tirx.IntImm) else float("inf") for extent in simple)
