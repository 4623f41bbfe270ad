"""Rows on a GPU: reductions along the innermost axes, softmax, normalisations, in one pass over memory.

`threads` (a part of a warp to a whole block) share a row, which stays in their registers (`keep`) from the first
stage to the last. `split`: so many blocks share a row, where there are few long ones; a second kernel adds up. Blocks
of a `cluster` share a row, and read one another's totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.runs import part_length
from subtune.backends.cuda.source.combiner import combiner_of
from subtune.backends.cuda.source.emit import const, prim_func
from subtune.backends.cuda.source.lanes import Unsupported, not_applicable
from subtune.backends.cuda.source.lines import Parts, Plan, line_kernel, part_kernels
from subtune.backends.cuda.source.stages import Lines, lines_of
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks, is_costly, is_reduction

CLUSTERS_SINCE = 90
"""The compute capability, ten times."""


@dataclass(frozen=True, slots=True)
class RowwiseKnobs:
    """`threads` of a row, `rows` of a block, `tile` rows of a thread.

    `split` blocks share a row, and leave the rest to another kernel; those of a `cluster` share one by themselves.
    """

    threads: int
    rows: int
    lanes: int
    tile: int = 1
    unroll: int = 4
    keep: bool = False
    split: int = 1
    final: int = 32
    cluster: int = 1


def schedule(problem: Problem[CUDAModel], knobs: RowwiseKnobs) -> Kernel | NotApplicable:
    if knobs.cluster > 1 and (problem.device.capability < CLUSTERS_SINCE or knobs.rows > 1 or knobs.split > 1):
        return NotApplicable("clusters of blocks are Hopper's, and have a row at a time")
    plan = Plan(
        threads=knobs.threads,
        groups=knobs.rows,
        lanes=knobs.lanes,
        tile=knobs.tile,
        unroll=knobs.unroll,
        keep=knobs.keep,
        exact=problem.numerics.exact,
        cluster=knobs.cluster,
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
            return _split(sch, plan, lines, split, final_threads, outputs)
        blocks = [sch.get(b) for b in all_blocks(sch)]
        return Kernel(prim_func(sch.mod["main"], [line_kernel(blocks, lines, plan, outputs)]))
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _inline(sch: Schedule, lines: Lines, keep: bool, outputs: set[str]) -> None:
    """Inline stages with a value per element; those that cost much and are read twice stay where they can be kept.

    What is computed from totals alone, one value per line, stays a stage.
    """
    totals: set[Any] = set()
    for block in all_blocks(sch):
        node = sch.get(block)
        target = node.writes[0].source
        if is_reduction(node) or (node.reads and all(region.source in totals for region in node.reads)):
            totals.update(region.source for region in node.writes)
        if is_reduction(node) or target.name in outputs:
            continue
        is_full = prod(int(iv.dom.extent) for iv in node.iter_vars) != lines.outer * lines.columns
        is_kept = not is_full and any(region.source in totals for region in node.reads)
        is_twice = is_full and keep and is_costly(node) and len(sch.get_consumers(block)) > 1
        if not is_kept and not is_twice:
            sch.compute_inline(block)


def _split(
    sch: Schedule, plan: Plan, lines: Lines, split: int, final_threads: int, outputs: list[Any]
) -> Kernel | NotApplicable:
    """The one reduction in parts of its length: a kernel for the parts, and one that puts them together."""
    blocks = [sch.get(b) for b in all_blocks(sch)]
    reductions = [block for block in blocks if is_reduction(block)]
    if len(reductions) != 1:
        return NotApplicable("only a single reduction is split over blocks")
    if plan.batch * plan.tile != 1 and lines.length % split:
        return NotApplicable("unequal parts of several lines at a time")
    combiner = combiner_of(reductions[0])
    totals = {
        buffer: tirx.decl_buffer([const(lines.outer * split * lines.columns)], dtype, f"totals{i}")
        for i, (buffer, dtype) in enumerate(zip(combiner.buffers, combiner.dtypes, strict=True))
    }
    is_across = lines.columns > 1
    final = Plan(threads=final_threads, groups=plan.groups if is_across else max(1, 128 // final_threads),
                 lanes=plan.lanes if is_across else 1, exact=plan.exact)  # fmt: skip
    part = part_length(lines.length, split, 1 if is_across else plan.lanes)
    kernels = part_kernels(blocks, lines, Parts(split, part, lines.length, totals), (plan, final), outputs)
    return Kernel(prim_func(sch.mod["main"], kernels, list(totals.values())))
