"""Rows on a GPU: reductions along the innermost axes, softmax, normalisations, in one pass over memory.

`threads` (a part of a warp to a whole block) share a row, which stays in their registers (`keep`) from the first
stage to the last. `split`: so many blocks share a row, where there are few long ones; a second kernel adds up.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.source.emit import prim_func
from subtune.backends.cuda.source.lanes import Unsupported, not_applicable
from subtune.backends.cuda.source.lines import Plan, line_kernel
from subtune.backends.cuda.source.stages import lines_of
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks, is_costly, is_reduction


@dataclass(frozen=True, slots=True)
class RowwiseKnobs:
    """`threads` of a row, `rows` of a block, `tile` rows of a thread; `split` blocks share a row."""

    threads: int
    rows: int
    lanes: int
    tile: int = 1
    unroll: int = 4
    keep: bool = False
    split: int = 1
    final: int = 32


def schedule(problem: Problem[CUDAModel], knobs: RowwiseKnobs) -> Kernel | NotApplicable:
    plan = Plan(
        threads=knobs.threads,
        groups=knobs.rows,
        lanes=knobs.lanes,
        tile=knobs.tile,
        unroll=knobs.unroll,
        keep=knobs.keep,
        exact=problem.numerics.exact,
    )
    return schedule_lines(problem.workload, plan, 1, knobs.split, knobs.final)


def schedule_lines(
    workload: Workload, plan: Plan, columns: int, split: int = 1, final_threads: int = 32
) -> Kernel | NotApplicable:
    """The workload as one kernel over its lines; as two where `split` blocks share a line."""
    sch = Schedule(workload.func)
    try:
        outputs = [sch.get(b).writes[0].source for b in sch.get_output_blocks(sch.get_sblock("root"))]
        reductions = [sch.get(b) for b in all_blocks(sch) if is_reduction(sch.get(b))]
        if not reductions:
            return NotApplicable("no reduction")
        if not all(isinstance(iv.dom.extent, tirx.IntImm) for b in all_blocks(sch) for iv in sch.get(b).iter_vars):
            return NotApplicable("symbolic extents")
        lines = lines_of(reductions, columns)
        if lines.outer % plan.batch or (lines.columns if columns > 1 else lines.length) % plan.lanes:
            return NotApplicable(f"{plan} does not divide {lines}")
        _inline(sch, lines, plan.keep, {output.name for output in outputs})
        if split > 1:
            return _split(sch, workload, plan, columns, split, final_threads, outputs)
        blocks = [sch.get(b) for b in all_blocks(sch)]
        return Kernel(prim_func(sch.mod["main"], [line_kernel(blocks, lines, plan, outputs)]))
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _inline(sch: Schedule, lines: Any, keep: bool, outputs: set[str]) -> None:
    """Inline stages with a value per element; those that cost much and are read twice stay where they can be kept.

    What is computed from totals alone, one value per line, stays a stage.
    """
    totals: set[Any] = set()
    for block in all_blocks(sch):
        node = sch.get(block)
        target = node.writes[0].source
        if is_reduction(node) or (node.reads and all(region.source in totals for region in node.reads)):
            totals.add(target)
        if is_reduction(node) or target.name in outputs:
            continue
        is_full = prod(int(iv.dom.extent) for iv in node.iter_vars) != lines.outer * lines.columns
        is_kept = not is_full and any(region.source in totals for region in node.reads)
        is_twice = is_full and keep and is_costly(node) and len(sch.get_consumers(block)) > 1
        if not is_kept and not is_twice:
            sch.compute_inline(block)


def _split(
    sch: Schedule, workload: Workload, plan: Plan, columns: int, split: int, final_threads: int, outputs: list[Any]
) -> Kernel | NotApplicable:
    """The one reduction in parts of its length: a kernel for the parts, and one that puts them together."""
    reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    if len(reductions) != 1:
        return NotApplicable("only a single reduction is split over blocks")
    node = sch.get(reductions[0])
    kept = sum(int(iv.iter_type) == tirx.IterVar.DataPar for iv in node.iter_vars)
    loops = sch.get_loops(reductions[0])
    length = prod(int(iv.dom.extent) for iv in node.iter_vars[kept:])
    if length % split or (columns == 1 and length // split % plan.lanes):
        return NotApplicable(f"{length} elements are not {split} parts of whole runs")
    fused = sch.fuse(*loops[kept:]) if len(loops) - kept > 1 else loops[kept]
    for other in all_blocks(sch):
        if not sch.get_loops(other):
            sch.add_unit_loop(other)  # rfactor takes a block without loops for the reduction (apache-tvm 0.27.0.post1)
    outside, _ = sch.split(fused, [split, None])
    partial = sch.get(sch.rfactor(outside, 0 if columns > 1 else kept))
    blocks = [sch.get(b) for b in all_blocks(sch)]
    first = [block for block in blocks if block.name_hint == partial.name_hint]
    rest = [block for block in blocks if block.name_hint != partial.name_hint]
    workspace = partial.writes[0].source
    parts = lines_of(first, columns)
    final = lines_of([block for block in rest if is_reduction(block)], columns)
    final_plan = Plan(threads=final_threads, groups=plan.groups if columns > 1 else max(1, 128 // final_threads),
                      lanes=plan.lanes if columns > 1 else 1, exact=plan.exact)  # fmt: skip
    kernels = [line_kernel(first, parts, plan, [workspace]), line_kernel(rest, final, final_plan, outputs)]
    return Kernel(prim_func(sch.mod["main"], kernels, [workspace]))
