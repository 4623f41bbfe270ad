"""A schedule that is alike at all extents, for workloads of dynamic shapes that nothing else serves."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks


def plain(workload: Workload, threads: int) -> Kernel:
    """Every stage a launch of its own, every result a thread's, `threads` of them to a block."""
    sch = Schedule(workload.func)
    for block in all_blocks(sch):
        axes = sch.get(block).iter_vars
        loops = sch.get_loops(block)
        kept = [loop for loop, axis in zip(loops, axes, strict=False) if int(axis.iter_type) == tirx.IterVar.DataPar]
        rest = [loop for loop in loops if all(loop is not one for one in kept)]
        if not kept:
            kept = [sch.add_unit_loop(loops[0] if loops else block)]
        elif len(kept) > 1 or rest:
            sch.reorder(*kept, *rest)
        whole = sch.fuse(*kept) if len(kept) > 1 else kept[0]
        across, within = sch.split(whole, [None, threads])
        sch.bind(across, "blockIdx.x")
        sch.bind(within, "threadIdx.x")
    return Kernel(sch.mod["main"])
