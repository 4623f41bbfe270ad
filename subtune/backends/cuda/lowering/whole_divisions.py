"""Divisions of what cannot be negative, as the hardware has them.

TVM divides towards minus infinity and C towards zero: where TVM cannot tell that a number is not negative, it adds a
correction to each remainder. Of a kernel for many shapes it knows nothing of the extents, and rows are bounded by the
last one, `extent * 784 - 1`. Where without an element there is no block, there is one at least in every block: then
that is not negative. A 3 x 3 convolution of 128 channels, whose every pixel is looked for by two remainders, takes half
of the time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.sym.analyzer import Analyzer
from tvm.tirx import PrimFunc

from subtune.tir.substitute import substitute
from subtune.tir.walk import found

_MANY = 1 << 30


@tvm.transform.module_pass(opt_level=0, name="subtune.WholeDivisions")  # type: ignore[untyped-decorator]
def whole_divisions(mod: IRModule, _context: PassContext) -> IRModule:
    """Run on kernels, before TVM makes the corrections."""
    changed = mod.clone()
    for name, func in mod.functions_items():
        if isinstance(func, PrimFunc) and any(map(_is_number, func.params)):
            changed.update_func(name, func.with_body(_divided(func)))
    return changed


def _divided(func: PrimFunc) -> Any:
    analyzer = Analyzer()
    blocks = [one.value for one in _launched(func) if str(one.node.thread_tag).startswith("blockIdx")]
    for var in filter(_is_number, func.params):
        nothing = [analyzer.simplify(substitute(extent, {var: tirx.const(0, var.ty.dtype)})) for extent in blocks]
        least = int(any(isinstance(extent, tirx.IntImm) and int(extent) == 0 for extent in nothing))
        analyzer.bind(var, ir.Range(tirx.const(least, var.ty.dtype), tirx.const(_MANY, var.ty.dtype)))
    for one in _launched(func):
        analyzer.bind(one.node.var, ir.Range(tirx.const(0, one.value.ty.dtype), one.value))
    for loop in found(func.body, tirx.For):
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))
    for bind in found(func.body, tirx.Bind):
        if str(getattr(bind.var.ty, "dtype", "")).startswith("int"):
            analyzer.bind(bind.var, bind.value)

    def is_whole(one: Any) -> bool:
        if isinstance(one.b, tirx.IntImm) and int(one.b).bit_count() == 1:  # they are shifts and masks
            return False
        return all(int(analyzer.const_int_bound(part).min_value) >= least for part, least in ((one.a, 0), (one.b, 1)))

    def quotient(one: Any) -> Any:
        return tirx.truncdiv(one.a, one.b) if is_whole(one) else one

    def rest(one: Any) -> Any:
        return tirx.truncmod(one.a, one.b) if is_whole(one) else one

    return tvm_ffi.structural_map(func.body, [(tirx.FloorDiv, quotient), (tirx.FloorMod, rest)])


def _launched(func: PrimFunc) -> Iterator[Any]:
    """What says how many threads and blocks there are."""
    return (one for one in found(func.body, tirx.AttrStmt) if str(one.attr_key) == "thread_extent")


def _is_number(param: Any) -> bool:
    is_buffer = isinstance(param.ty, tirx.BufferType)
    return not is_buffer and str(getattr(param.ty, "dtype", "")) in ("int32", "int64")
