"""A straight line of kernels in several modules, which processes compile side by side: LLVM has one thread.

Kernels that are moved away are functions of C to those that call them. The linker puts all together again.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.tir.walk import found

EXPORTED = "subtune.exported"
"""Attribute of a PrimFunc: its name for the linker. It takes addresses and numbers, as other functions of C do."""
_LEAST = 4
"""Kernels of a part: a process takes a moment to start."""


def parts(mod: IRModule, count: int) -> list[IRModule]:
    """At most `count` modules, the first with `main`, of about as much to compile each."""
    kernels = _movable(mod)
    count = min(count, len(kernels) // _LEAST)
    if count < 2:
        return [mod]
    shares: list[dict[Any, PrimFunc]] = [{} for _ in range(count)]
    sizes = [0] * count
    for gvar, size in sorted(kernels.items(), key=lambda one: (-one[1], one[0].name_hint)):
        at = sizes.index(min(sizes))
        shares[at][gvar] = mod[gvar]
        sizes[at] += size
    moved = {gvar for share in shares[1:] for gvar in share}
    rest = {gvar: func for gvar, func in mod.functions_items() if gvar not in moved}
    first = {gvar: func if gvar in kernels else _calling(func, moved) for gvar, func in rest.items()}
    return [tvm.IRModule(first), *(tvm.IRModule({g: _exported(g, f) for g, f in one.items()}) for one in shares[1:])]


def exported() -> Any:
    """The pass that shows functions to the linker. It comes after the one that would make packed calls of them."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        name = func.attrs.get(EXPORTED) if func.attrs else None
        return func if name is None else func.with_attr("global_symbol", str(name))

    return run


def _movable(mod: IRModule) -> dict[Any, int]:
    """Kernels that call no others, with about how much each is to compile."""
    kernels = {}
    for gvar, func in mod.functions_items():
        if not isinstance(func, PrimFunc):
            return {}
        calls_others = any(isinstance(call.op, ir.GlobalVar) for call in found(func.body, ir.Call))
        if "global_symbol" not in func.attrs and not calls_others:
            kernels[gvar] = 1 + len(found(func.body, tirx.BufferStore))
    return kernels


def _symbol(gvar: Any) -> str:
    return f"subtune_kernel_{gvar.name_hint}"


def _exported(gvar: Any, func: PrimFunc) -> PrimFunc:
    return func.with_attr(EXPORTED, _symbol(gvar))


def _calling(func: PrimFunc, moved: set[Any]) -> PrimFunc:
    def called(call: Any) -> Any:
        if call.op not in moved:
            return call
        return tirx.call_extern("int32", _symbol(call.op), *call.args)

    return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, called)))
