"""The TIR pipeline of CUDA kernels made by schedules: TVM's own, with what tensor-core schedules need beside it.

Different from TVM's `s_tir`:
- asynchronous copies wherever a schedule asks for them, without a switch in the PassContext of whoever builds; of bytes
  with zeros around them, too (`async_bytes`);
- tiles of more rows than there are copy the last one again (`free_rows`);
- indices are counted in 32 bits (`narrow_indices`);
- vectors that lie in one run of memory are seen to (`uniform_lanes`);
- `swizzle` after the regions of intrinsics are known;
- no common subexpressions: as variables they hide indices of warp memory from LowerWarpMemory (nvcc finds them again);
- LowerWarpMemory as often as it finds something: it lowers the first buffer of a list of statements only
  (apache-tvm 0.27.0.post1);
- maxima and minima keep NaN (`nan`);
- GELU is a function of its own (`gelu`); where halves are stored, erf is a polynomial (`erf`);
- exponentials and quotients are the hardware's where halves are stored (`float_functions`);
- remainders of what cannot be negative are the hardware's (`whole_divisions`);
- a kernel starts while the one before it ends (`dependent_launch`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from subtune.backends.cuda.lowering.async_bytes import async_bytes
from subtune.backends.cuda.lowering.called_mma import called_mma
from subtune.backends.cuda.lowering.dependent_launch import start_early, wait_for_previous
from subtune.backends.cuda.lowering.erf import short_erf
from subtune.backends.cuda.lowering.flat import FLAT, with_host
from subtune.backends.cuda.lowering.float8_vectors import float8_vectors
from subtune.backends.cuda.lowering.float_functions import short_float_functions
from subtune.backends.cuda.lowering.free_rows import free_rows
from subtune.backends.cuda.lowering.gelu import gelu
from subtune.backends.cuda.lowering.nan import nan_kept
from subtune.backends.cuda.lowering.narrow_indices import narrow_indices
from subtune.backends.cuda.lowering.printable import printable
from subtune.backends.cuda.lowering.settled import settled
from subtune.backends.cuda.lowering.swizzle import swizzle
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR, lower_by_kind, tirx_to_flat
from subtune.backends.cuda.lowering.uniform_lanes import uniform_lanes
from subtune.backends.cuda.lowering.whole_divisions import whole_divisions
from subtune.core.variants import GREATEST

PIPELINE = "subtune_cuda"
_WARP_BUFFERS = 12  # the sums, and A and B once per stage before and after the steady loop

CONFIG = {"tirx.use_async_copy": True, "tirx.disable_cse_tir": True}


def s_tir_passes() -> tuple[Any, ...]:
    """From scheduled blocks to host and device functions."""
    x = tirx.transform
    last = x.SplitHostDevice(), x.MakePackedAPI(), x.FP8StorageLegalize(), x.BF16StorageLegalize()
    return (*_s_tir_to_flat(), start_early, *last)


def _s_tir_to_flat() -> tuple[Any, ...]:
    """From scheduled blocks to loops over flat buffers, and threads."""
    t, x = s_tir.transform, tirx.transform
    return (
        *_blocks_to_loops(),
        # flat memory, narrow indices, vectors
        x.FlattenBuffer(), x.BF16ComputeLegalize(), narrow_indices, x.NarrowDataType(32), t.LoopPartition(),
        uniform_lanes, x.VectorizeLoop(True), t.InjectVirtualThread(), t.InjectDoubleBuffer(), x.StorageRewrite(),
        t.LowerAsyncDMA(),
        t.HoistIfThenElse(), x.UnrollLoop(), t.RenormalizeSplitPattern(), x.StmtSimplify(), x.RemoveNoOp(),
        t.RewriteUnsafeSelect(),
        # threads and their barriers
        x.FP8ComputeLegalize(), x.VerifyMemory(), x.AnnotateEntryFunc(), t.ThreadSync("shared"),
        t.ThreadSync("shared.dyn"), t.ThreadSync("warp"), t.InferFragment(), t.LowerThreadAllreduce(),
        async_bytes, t.InjectPTXAsyncCopy(), t.MergeSharedMemoryAllocations(),
    )  # fmt: skip


def flat(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """A scheduled function lowered to loops over flat buffers round and inside its launches.

    Of a kernel of dynamic shapes, what it allocates between launches has the size of the largest instance.
    """
    is_written = bool(func.attrs) and TIRX_ATTR in func.attrs
    passes = tirx_to_flat() if is_written else _s_tir_to_flat()
    name = func.attrs["global_symbol"] if func.attrs and "global_symbol" in func.attrs else "main"
    given = func.with_attrs({"global_symbol": name, "target": with_host(target)})
    with tvm.transform.PassContext(config=CONFIG), target:
        made = tvm.ir.transform.Sequential(passes)(tvm.IRModule({"main": given}))["main"]
    return settled(made).with_attr(FLAT, True)


def _blocks_to_loops() -> tuple[Any, ...]:
    t = s_tir.transform
    return (
        free_rows, t.CanonicalizeLoop(), t.LowerCrossThreadReduction(), t.LowerInitBlock(),
        t.PlanAndUpdateBufferAllocationLocation(), t.ConvertBlocksToOpaque(), t.LiftThreadBinding(),
        t.ManifestSharedMemoryLocalStage(), t.CompactBufferAllocation(), t.LowerAutoCopy(), t.UnifyThreadBinding(),
        t.LowerMatchBuffer(), t.StmtSimplify(), swizzle, t.InjectPermutedLayout(), t.AnnotateIrregularLoop(),
        t.InjectSoftwarePipeline(), t.TransformMmaBufferLayout(), t.LowerOpaqueBlock(),
    )  # fmt: skip


def check_allocations(mod: IRModule) -> None:
    """Raises what TVM raises where a scheduled function uses a buffer outside of where it is allocated."""
    with tvm.transform.PassContext(config=CONFIG):
        tvm.ir.transform.Sequential([*_blocks_to_loops(), tirx.transform.FlattenBuffer()])(mod)


def lower_s_tir(mod: IRModule) -> IRModule:
    """All functions of `mod`, which are scheduled, through `s_tir_passes`."""
    context = tvm.transform.PassContext.current()
    config = {**dict(context.config), **CONFIG}
    with tvm.transform.PassContext(opt_level=context.opt_level, config=config):
        return tvm.ir.transform.Sequential(s_tir_passes())(mod)


def finalize_device() -> Any:
    x = tirx.transform
    return tvm.ir.transform.Sequential(
        [
            *([x.LowerWarpMemory()] * _WARP_BUFFERS),
            x.StmtSimplify(),
            called_mma,
            gelu,
            short_erf,
            short_float_functions,
            whole_divisions,
            x.LowerIntrin(),
            nan_kept,
            float8_vectors,
            printable,
            wait_for_previous,
        ]
    )


def finalize_host() -> Any:
    return tvm.ir.transform.Sequential([tirx.transform.LowerTVMBuiltin(), tirx.transform.LowerIntrin()])


def pipeline() -> tuple[Any, Any, Any]:
    @tvm.transform.module_pass(opt_level=0, name="subtune.CUDAPipeline")  # type: ignore[untyped-decorator]
    def lower(mod: IRModule, _context: PassContext) -> IRModule:
        for name, func in mod.functions_items():
            if func.attrs and GREATEST in func.attrs and FLAT not in func.attrs:
                mod.update_func(name, flat(func, func.attrs["target"]))
        return lower_by_kind(mod, lower_s_tir)

    return lower, finalize_host, finalize_device


def register() -> str:
    """The pipeline's name for `tvm.compile(..., tir_pipeline=...)` and `relax.build`, known to TVM from now on."""
    from tvm.tirx.compilation_pipeline import register_tir_pipeline

    register_tir_pipeline(PIPELINE, pipeline)
    return PIPELINE
