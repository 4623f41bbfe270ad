"""Columns on a GPU: reductions that keep the innermost axis; global pooling, sums over rows, statistics.

A thread takes `lanes` neighbouring columns (16 bytes), `threads` of them share the length of a column.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.rowwise.schedule import CLUSTERS_SINCE, schedule_lines
from subtune.backends.cuda.source.combiner import combiner_of
from subtune.backends.cuda.source.lanes import Unsupported, not_applicable
from subtune.backends.cuda.source.lines import Plan
from subtune.core.kernel import Kernel, NotApplicable
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.expressions import loads


@dataclass(frozen=True, slots=True)
class ColumnsKnobs:
    """`threads` of a column, `chunks` (runs of `lanes` columns) of a block. `split` blocks share a column, and leave
    the rest to another kernel; those of a `cluster` share one by themselves.
    """

    threads: int
    chunks: int
    lanes: int
    unroll: int = 4
    keep: bool = False
    split: int = 1
    final: int = 8
    cluster: int = 1


def schedule(problem: Problem[CUDAModel], knobs: ColumnsKnobs) -> Kernel | NotApplicable:
    try:
        sch = Schedule(problem.workload.func)
        reductions = [sch.get(b) for b in all_blocks(sch) if is_reduction(sch.get(b))]
        if not reductions:
            return NotApplicable("no reduction")
        columns = neighbours(reductions[0])
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)
    if columns < 2:
        return NotApplicable("the reduction does not keep its innermost axis")
    if knobs.cluster > 1 and (problem.device.capability < CLUSTERS_SINCE or knobs.split > 1):
        return NotApplicable("clusters of blocks are Hopper's")
    if knobs.cluster > knobs.threads:
        return NotApplicable("fewer threads of a column than blocks, whose totals they fetch")
    shape = knobs.threads, knobs.chunks, knobs.lanes
    plan = Plan(*shape, 1, 1, knobs.unroll, knobs.keep, problem.numerics.exact, knobs.cluster)
    return schedule_lines(problem.workload, plan, columns, knobs.split, knobs.final)


def neighbours(reduction: Any) -> int:
    """Elements that are neighbours in memory and are all kept: the kept axes inside the innermost reduced one.

    Raises Unsupported where the block combines what nothing here does.
    """
    kinds = {iv.var: int(iv.iter_type) for iv in reduction.iter_vars}
    extents = {iv.var: int(iv.dom.extent) for iv in reduction.iter_vars if isinstance(iv.dom.extent, tirx.IntImm)}
    for load in (load for element in combiner_of(reduction).elements for load in loads(element)):
        inside = []
        for index in reversed(list(load.indices)):
            axis = _axis(index, extents)
            if axis is None or (kinds[axis] != tirx.IterVar.DataPar and extents[axis] > 1):
                break
            inside.append(extents[axis])
        if inside and len(inside) < len(load.indices):
            return prod(inside)
    return 1


def _axis(index: Any, extents: dict[Any, int]) -> Any:
    """The axis that an index is, axes of one value left out; None where it is more than an axis."""
    if isinstance(index, tirx.Add):
        for one, other in ((index.a, index.b), (index.b, index.a)):
            if isinstance(other, ir.Var) and extents.get(other) == 1:
                return _axis(one, extents)
    return index if isinstance(index, ir.Var) and index in extents else None
