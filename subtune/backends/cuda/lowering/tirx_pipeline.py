"""Kinds of kernels in one module: schedules of TIR, those written in `tvm.tirx`, flat ones; each lowered its way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.ir import IRModule

from subtune.backends.cuda.lowering.dependent_launch import start_early
from subtune.backends.cuda.lowering.flat import FLAT, HOST, lower_flat

TIRX_ATTR = "subtune.tirx"
"""On kernels that go through TVM's tirx pipeline instead of that of schedulable TIR."""


def tirx_to_flat() -> tuple[Any, ...]:
    """From a kernel written in `tvm.tirx` to a flat one: TVM's passes but for common subexpressions, as variables they
    hide from codegen that a load is aligned."""
    x = tirx.transform
    return (
        x.LowerTIRx(), s_tir.transform.UnifyThreadBinding(), x.StmtSimplify(), x.LowerTIRxOpaque(), x.FlattenBuffer(),
        x.BF16ComputeLegalize(), x.NarrowDataType(32), x.VectorizeLoop(True), x.UnrollLoop(), x.StmtSimplify(),
        x.FP8ComputeLegalize(), x.VerifyMemory(), x.AnnotateEntryFunc(),
    )  # fmt: skip


def tirx_passes() -> tuple[Any, ...]:
    """TVM's tirx pipeline."""
    x = tirx.transform
    last = x.SplitHostDevice(), x.MakePackedAPI(), x.FP8StorageLegalize(), x.BF16StorageLegalize()
    return (*tirx_to_flat(), start_early, *last)


def lower_by_kind(mod: IRModule, lower_scheduled: Callable[[IRModule], IRModule]) -> IRModule:
    """Functions with `TIRX_ATTR` through the tirx passes, flat ones and what calls them through the last passes, the
    others through `lower_scheduled`; one module again."""
    kinds: dict[str, dict[Any, Any]] = {FLAT: {}, HOST: {}, TIRX_ATTR: {}, "": {}}
    for name, func in mod.functions.items():
        kind = next((one for one in kinds if func.attrs and one in func.attrs), "")
        kinds[kind][name] = func
    parts = {kind: tvm.IRModule(functions, attrs=mod.attrs) for kind, functions in kinds.items()}
    lowered = tvm.IRModule({}, attrs=mod.attrs)
    if kinds[""] or not any(kinds.values()):
        lowered.update(lower_scheduled(parts[""]))
    if kinds[TIRX_ATTR]:
        lowered.update(tvm.ir.transform.Sequential(tirx_passes())(parts[TIRX_ATTR]))
    if kinds[FLAT] or kinds[HOST]:
        lowered.update(lower_flat(parts[FLAT], parts[HOST]))
    return lowered


def pipeline() -> tuple[Any, Any, Any]:
    """Of a module of `tvm.tirx` kernels alone, as `register_tir_pipeline` takes it."""
    from tvm.tirx.compilation_pipeline import finalize_device_passes, finalize_host_passes

    return tvm.ir.transform.Sequential(tirx_passes()), finalize_host_passes, finalize_device_passes
