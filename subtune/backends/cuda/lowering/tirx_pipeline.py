"""Two kinds of kernels in one module: schedules of TIR and those written in `tvm.tirx`, each lowered its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import IRModule

from subtune.backends.cuda.lowering.dependent_launch import start_early

TIRX_ATTR = "subtune.tirx"
"""On kernels that go through TVM's tirx pipeline instead of that of schedulable TIR."""


def tirx_passes() -> tuple[Any, ...]:
    """TVM's tirx pipeline but for common subexpressions: as variables they hide from codegen that a load is aligned."""
    x = tirx.transform
    return (
        x.LowerTIRx(), s_tir.transform.UnifyThreadBinding(), x.StmtSimplify(), x.LowerTIRxOpaque(), x.FlattenBuffer(),
        x.BF16ComputeLegalize(), x.NarrowDataType(32), x.VectorizeLoop(True), x.UnrollLoop(), x.StmtSimplify(),
        x.FP8ComputeLegalize(), x.VerifyMemory(), x.AnnotateEntryFunc(), start_early, x.SplitHostDevice(),
        x.MakePackedAPI(), x.FP8StorageLegalize(), x.BF16StorageLegalize(),
    )  # fmt: skip


def lower_by_kind(mod: IRModule, lower_scheduled: Callable[[IRModule], IRModule]) -> IRModule:
    """Functions with `TIRX_ATTR` through the tirx passes, the others through `lower_scheduled`; one module again."""
    written = {name: func for name, func in mod.functions.items() if func.attrs and TIRX_ATTR in func.attrs}
    scheduled = {name: func for name, func in mod.functions.items() if name not in written}
    lowered = tvm.IRModule({}, attrs=mod.attrs)
    if scheduled or not written:
        lowered.update(lower_scheduled(tvm.IRModule(scheduled, attrs=mod.attrs)))
    if written:
        lowered.update(tvm.ir.transform.Sequential(tirx_passes())(tvm.IRModule(written, attrs=mod.attrs)))
    return lowered


def pipeline() -> tuple[Any, Any, Any]:
    """Of a module of `tvm.tirx` kernels alone, as `register_tir_pipeline` takes it."""
    from tvm.tirx.compilation_pipeline import finalize_device_passes, finalize_host_passes

    return tvm.ir.transform.Sequential(tirx_passes()), finalize_host_passes, finalize_device_passes
