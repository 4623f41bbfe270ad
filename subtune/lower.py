"""The pipeline that turns a scheduled PrimFunc into LLVM's input: TVM's own, and two changes of how memory is seen.

Parameters need no more than their element's alignment: TVM's 64 bytes would have every input array of numpy copied,
and an unaligned load of an aligned address costs nothing.

Small scratch buffers are on the stack: TVM takes every buffer of scope "local" from its workspace pool, that is from
memory. Accumulators then stay in memory for LLVM too, save where it can prove in a loop that nothing else touches
them. On the stack they become registers.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from subtune.substitute import substitute

_STACK_BYTES = 16384
"""Largest buffer on the stack: a thread's has megabytes, and no more than a few buffers are alive together."""
_KEEP_ON_STACK = "disable_lower_builtin"  # tirx.transform.kDisableLowerTVMBuiltin

PIPELINE = "subtune"


def _pipeline() -> tuple[Any, Any, Any]:
    from tvm.s_tir.pipeline import default_s_tir_pipeline

    lower, finalize_host, finalize_device = default_s_tir_pipeline()
    passes = [_any_alignment(), lower, _small_buffers_on_stack()]
    return tvm.ir.transform.Sequential(passes), finalize_host, finalize_device


def _any_alignment() -> Any:
    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: Any, _mod: Any, _ctx: Any) -> Any:
        renamed = {param: _unaligned(param) for param in func.params if isinstance(param.ty, tirx.BufferType)}
        params = [renamed.get(param, param) for param in func.params]
        return tirx.PrimFunc(params, substitute(func.body, renamed), func.ret_type, func.attrs)

    return run


def _unaligned(param: Any) -> Any:
    alignment = max(1, tvm_ffi.dtype(str(param.dtype)).itemsize)
    return tirx.decl_buffer(param.shape, param.dtype, param.name, scope=param.scope(), data_alignment=alignment)


def _small_buffers_on_stack() -> Any:
    def annotate(alloc: Any) -> Any:
        buffer = alloc.buffer
        if buffer.scope() != "local" or not _fits(buffer):
            return alloc
        return tirx.AllocBuffer(buffer, {**alloc.annotations, _KEEP_ON_STACK: tirx.IntImm("int32", 1)})

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: Any, _mod: Any, _ctx: Any) -> Any:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, annotate)))

    return run


def _fits(buffer: Any) -> bool:
    elements = 1
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return False
        elements *= int(extent)
    return elements * tvm_ffi.dtype(str(buffer.dtype)).itemsize <= _STACK_BYTES


tirx.register_tir_pipeline(PIPELINE, _pipeline)
