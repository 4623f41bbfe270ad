"""A schedule that is alike at all extents, for workloads of dynamic shapes that nothing else serves."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks


def plain(workload: Workload, is_single: bool) -> Kernel:
    """The workload as it is, its outermost loops shared out among the threads, or left to one."""
    sch = Schedule(workload.func)
    for block in () if is_single else all_blocks(sch):
        loops = sch.get_loops(block)
        first = sch.get(block).iter_vars[0] if loops else None
        if first is not None and int(first.iter_type) == tirx.IterVar.DataPar:
            sch.parallel(loops[0])
    return Kernel(sch.mod["main"])
