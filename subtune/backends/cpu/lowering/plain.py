"""A schedule that is alike at all extents, for workloads of dynamic shapes that nothing else serves."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks, is_costly, is_reduction


def plain(workload: Workload, is_single: bool) -> Kernel:
    """The workload as it is, its outermost loops shared out among the threads, or left to one."""
    sch = Schedule(workload.func)
    _inline(sch)
    for block in () if is_single else all_blocks(sch):
        loops = sch.get_loops(block)
        first = sch.get(block).iter_vars[0] if loops else None
        if first is not None and int(first.iter_type) == tirx.IterVar.DataPar:
            sch.parallel(loops[0])
    return Kernel(sch.mod["main"])


def _inline(sch: Schedule) -> None:
    """What is cheap to compute again: of stages in memory TVM joins those of about the same size, at other extents
    others.

    Arithmetic of integers stays. It wraps round in memory; to LLVM, which TVM tells that it never does, a sum that is
    widened is one of wide numbers.
    """
    outputs = {sch.get(block).name_hint for block in sch.get_output_blocks(sch.get_sblock("root"))}
    for block in all_blocks(sch):
        node = sch.get(block)
        is_read_often = is_costly(node) and len(sch.get_consumers(block)) > 1
        if node.name_hint in outputs or is_reduction(node) or is_read_often or _counts(node):
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:  # it stays
            continue


def _counts(node: Any) -> bool:
    """Whether it adds or multiplies, and stores integers."""
    found: list[bool] = []
    tvm_ffi.structural_walk(node.body, lambda one: found.append(isinstance(one, tirx.Add | tirx.Sub | tirx.Mul)))
    return any(found) and any("int" in str(region.source.dtype) for region in node.writes)
