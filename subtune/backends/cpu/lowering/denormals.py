"""Kernels that take denormal numbers for zero: x86 computes with them in microcode, a hundred times slower.

A network whose activations fade away spends all its time on them: an EfficientNet with random weights takes 6 ms where
it took 176. Which models cannot tell the difference is for `passes.denormals` to say.

The mode is a thread's own (MXCSR). A kernel sets it where it begins, in every thread, and puts back what it found: who
calls a model, and who shares the thread pool, keeps their arithmetic.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cpu.lowering.launches import LAUNCH, may_fail
from subtune.backends.cpu.lowering.sharing import KEEP_ON_STACK

ATTRIBUTE = "subtune.flushes_denormals"
"""Of a PrimFunc."""

_SET, _PUT_BACK = "subtune_flush_denormals", "subtune_put_back_denormals"
_FLUSHED = 0x8040
"""Of MXCSR: results that are denormal become zero, operands that are denormal count as zero."""
_LLVM = f"""; ModuleID = 'denormals'
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define linkonce_odr hidden i32 @{_SET}() alwaysinline nounwind {{
  %word = alloca i32, align 4
  call void @llvm.x86.sse.stmxcsr(ptr %word)
  %before = load i32, ptr %word, align 4
  %after = or i32 %before, {_FLUSHED}
  store i32 %after, ptr %word, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret i32 %before
}}
define linkonce_odr hidden i32 @{_PUT_BACK}(i32 %before) alwaysinline nounwind {{
  %word = alloca i32, align 4
  store i32 %before, ptr %word, align 4
  call void @llvm.x86.sse.ldmxcsr(ptr %word)
  ret i32 0
}}
"""


def flushing(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with its PrimFuncs marked for `flushed`."""
    functions = {
        gvar: func.with_attr(ATTRIBUTE, True) if isinstance(func, PrimFunc) else func
        for gvar, func in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def flushed(attribute: str) -> Any:
    """The pass, on marked functions that have `attribute`, too: those that do not return early, as nothing fails."""

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        if not func.attrs or ATTRIBUTE not in func.attrs or attribute not in func.attrs or may_fail(func.body):
            return func
        body, count = _in_threads(func.body)
        whole = body if count else _flushed(body)
        return func.with_body(tirx.AttrStmt(_int(0), "pragma_import_llvm", ir.StringImm(_LLVM), whole))

    return run


def _in_threads(stmt: Any) -> tuple[Any, int]:
    """With every launch's part of a thread flushed; and how many launches there are."""
    if isinstance(stmt, tirx.SeqStmt):
        parts = [_in_threads(one) for one in stmt.seq]
        return tirx.SeqStmt([part for part, _ in parts]), sum(count for _, count in parts)
    if isinstance(stmt, tirx.AttrStmt):
        body, count = (_flushed(stmt.body), 1) if stmt.attr_key == LAUNCH else _in_threads(stmt.body)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, body), count
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
        return tirx.AttrStmt(_int(0), LAUNCH, _int(1), _flushed(stmt)), 1
    return stmt, 0


def _flushed(body: Any) -> Any:
    mode = tirx.decl_buffer([1], "int32", "mode", scope="local")
    begin = tirx.BufferStore(mode, tirx.call_extern("int32", _SET), [_int(0)])
    finish = tirx.Evaluate(tirx.call_extern("int32", _PUT_BACK, tirx.BufferLoad(mode, [_int(0)])))
    return tirx.SeqStmt([tirx.AllocBuffer(mode, {KEEP_ON_STACK: _int(1)}), begin, body, finish])


def _int(value: int) -> Any:
    return tirx.const(value, "int32")
