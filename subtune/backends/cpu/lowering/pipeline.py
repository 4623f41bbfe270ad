"""The pipeline that turns a scheduled PrimFunc into LLVM's input: TVM's own, and some changes.

Parameters need no more than their element's alignment: TVM's 64 bytes would have every input array of numpy copied,
and an unaligned load of an aligned address costs nothing.

Small scratch buffers are on the stack: TVM takes every buffer of scope "local" from its workspace pool, that is from
memory. Accumulators then stay in memory for LLVM too, save where it can prove in a loop that nothing else touches
them. On the stack they become registers.

The parallel loops of a kernel share one launch of the thread pool (`launches`).

Threads take over pieces of one another's share of a loop (`sharing`).

Denormal numbers count as zero where nobody can tell (`denormals`).

Functions that are small near zero keep their digits there (`near_zero`).

What a vector of several joined inputs is read from is asked in the form in which TVM finds the answer.

Bytes are looked up in registers (`lookups`).

Vectors of ragged columns stay vectors (`tails`).

Bounds keep NaN (`nan`).

Long chains of choices are compiled in bounded time (`long_choices`), and long chains of functions (`named_values`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cpu.lowering.denormals import flushed
from subtune.backends.cpu.lowering.launches import asserts, joined
from subtune.backends.cpu.lowering.long_choices import begun_at_one
from subtune.backends.cpu.lowering.lookups import lookups_in_registers
from subtune.backends.cpu.lowering.named_values import many_in_buffers
from subtune.backends.cpu.lowering.nan import nan_kept
from subtune.backends.cpu.lowering.near_zero import digits_kept
from subtune.backends.cpu.lowering.parts import exported
from subtune.backends.cpu.lowering.sharing import KEEP_ON_STACK, shared_out
from subtune.backends.cpu.lowering.streaming import is_streamed, marked, stream_outputs
from subtune.backends.cpu.lowering.tails import whole_vectors
from subtune.backends.host.conversions import ATTRIBUTE as NO_FLOAT16
from subtune.backends.host.conversions import drop_conversions
from subtune.tir.substitute import substitute

_STACK_BYTES = 16384
"""Largest buffer on the stack: a thread's has megabytes, and no more than a few buffers are alive together."""

PIPELINE = "subtune"

FLAT = "subtune.flat"
"""Attribute of a PrimFunc that has been lowered already, save for its parameters, and asserts nothing."""

_TO_LOOPS = (
    s_tir.transform.CanonicalizeLoop,
    s_tir.transform.LowerCrossThreadReduction,
    s_tir.transform.LowerInitBlock,
    s_tir.transform.PlanAndUpdateBufferAllocationLocation,
    s_tir.transform.ConvertBlocksToOpaque,
    s_tir.transform.CompactBufferAllocation,
    s_tir.transform.LowerMatchBuffer,
    s_tir.transform.LowerOpaqueBlock,
    tirx.transform.FlattenBuffer,
    tirx.transform.BF16ComputeLegalize,
    partial(tirx.transform.NarrowDataType, 32),
    s_tir.transform.LoopPartition,
)
"""The first of TVM's passes, but for those that GPUs need: what they leave are loops over flat buffers."""

_TO_VECTORS = (
    s_tir.transform.StmtSimplify,
    s_tir.transform.AnnotateIrregularLoop,
    tirx.transform.VectorizeLoop,
    tirx.transform.StorageRewrite,
)
_FROM_UNROLLED = (
    tirx.transform.UnrollLoop,
    s_tir.transform.RenormalizeSplitPattern,
    tirx.transform.StmtSimplify,
    s_tir.transform.RewriteUnsafeSelect,
    tirx.transform.CommonSubexprElim,
    tirx.transform.FP8ComputeLegalize,
    tirx.transform.AnnotateEntryFunc,
)
"""TVM's HoistIfThenElse and RemoveNoOp look at every iteration of the unrolled loops, and LLVM's code is the same
without them."""

_PACKING = (
    tirx.transform.SplitHostDevice,
    tirx.transform.MakePackedAPI,
    tirx.transform.FP8StorageLegalize,
    tirx.transform.BF16StorageLegalize,
)
"""The last of TVM's passes: from here on parameters are a packed call's arguments."""


def flat(mod: tvm.IRModule) -> tvm.IRModule:
    """PrimFuncs with their target bound, lowered to loops at the root; parameters are still buffers."""
    return unrolled(looped(mod))


def looped(mod: tvm.IRModule) -> tvm.IRModule:
    """The first half of `flat`: loops as they were scheduled, those to be unrolled, too."""
    passes = [_any_alignment(), _answerable(), digits_kept(), *_made(_TO_LOOPS), whole_vectors(), *_made(_TO_VECTORS)]
    return tvm.ir.transform.Sequential(passes)(mod)


def unrolled(mod: tvm.IRModule) -> tvm.IRModule:
    """The second half, which takes the longer the more there is to unroll."""
    passes = [*_made(_FROM_UNROLLED), lookups_in_registers(), _small_buffers_on_stack()]
    return tvm.ir.transform.Sequential(passes)(mod)


def bound(kernels: Mapping[Any, PrimFunc], target: tvm.target.Target) -> IRModule:
    """Kernels by their names, for `flat` and its halves."""
    unnamed = tvm.IRModule({name: func.without_attr("global_symbol") for name, func in kernels.items()})
    return tirx.transform.BindTarget(target.with_host(target))(unnamed)


def _made(passes: Sequence[Callable[[], Any]]) -> list[Any]:
    return [make() for make in passes]


def _pipeline() -> tuple[Any, Any, Any]:
    from tvm.s_tir.pipeline import default_s_tir_pipeline

    _, finalize_host, finalize_device = default_s_tir_pipeline()
    passes = [
        _flattened(),
        shared_out(FLAT),
        flushed(FLAT),
        *(made() for made in _PACKING),
        exported(),
        _trusting(),
        _streamed(),
        _without_float16(),
    ]
    finalize = partial(tvm.ir.transform.Sequential, [finalize_host(), begun_at_one(), nan_kept(), many_in_buffers()])
    return tvm.ir.transform.Sequential(passes), finalize, finalize_device


def _flattened() -> Any:
    @tvm.transform.module_pass(opt_level=0)
    def run(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        done = {gvar: func for gvar, func in mod.functions_items() if func.attrs and FLAT in func.attrs}
        rest = mod.clone()
        for gvar in done:
            del rest[gvar]
        rest = flat(rest) if rest.functions else rest
        for gvar, func in rest.functions_items():
            rest.update_func(gvar, joined(func) if asserts(func) else joined(func).with_attr(FLAT, True))
        for gvar, func in done.items():
            rest.update_func(gvar, func)
        return rest

    return run


def _trusting() -> Any:
    """Kernels are called by programs of our own, on arguments that are checked or made by the artifact.

    Checking four arguments once more takes a tenth of a microsecond, and half of the time to compile a kernel.
    """

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        if not func.attrs or FLAT not in func.attrs:
            return func
        nothing = tirx.Evaluate(tirx.const(0, "int32"))
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AssertStmt, lambda _: nothing)))

    return run


def _any_alignment() -> Any:
    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        buffers = [param for param in func.params if isinstance(param.ty, tirx.BufferType)]
        renamed = {param: _unaligned(param, marked(func, param)) for param in buffers}
        params = [renamed.get(param, param) for param in func.params]
        return tirx.PrimFunc(params, substitute(func.body, renamed), func.ret_type, func.attrs)

    return run


def _answerable() -> Any:
    """`64 <= i * 16 + lane` with its two cases exchanged: of `i * 16 + lane < 64` TVM knows that the lane is no matter.

    It takes a vector apart where the lane is.
    """

    def exchange(call: Any) -> Any:
        if not isinstance(call.op, ir.Op) or call.op.name != "prim.if_then_else":
            return call
        question, yes, no = call.args
        if not isinstance(question, tirx.LE) or not isinstance(question.a, tirx.IntImm):
            return call
        return tirx.if_then_else(question.b < question.a, no, yes)

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (ir.Call, exchange)))

    return run


def _streamed() -> Any:
    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return stream_outputs(func) if is_streamed(func) else func

    return run


def _without_float16() -> Any:
    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
        return drop_conversions(func) if func.attrs and NO_FLOAT16 in func.attrs else func

    return run


def _unaligned(param: Any, name: str) -> Any:
    alignment = max(1, tvm_ffi.dtype(str(param.dtype)).itemsize)
    return tirx.decl_buffer(param.shape, param.dtype, name, scope=param.scope(), data_alignment=alignment)


def _small_buffers_on_stack() -> Any:
    def annotate(alloc: Any) -> Any:
        buffer = alloc.buffer
        if buffer.scope() != "local" or not _fits(buffer):
            return alloc
        return tirx.AllocBuffer(buffer, {**alloc.annotations, KEEP_ON_STACK: tirx.IntImm("int32", 1)})

    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
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
