"""Matrix times vector, or times a few of them (M <= 8): the matrix is read once, in 16-byte loads, and never stored.

    matrix [n, k]: `threads` share a row (or `tile` rows) of the matrix, every one of the M vectors is read beside it
    matrix [k, n]: a thread takes `lanes` neighbouring n, `threads` of them share k

What the matrix is made of (int4 weights and their scales) is computed in registers, as any prologue.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.rowwise.schedule import schedule_lines
from subtune.backends.cuda.source.lines import Plan
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import contraction
from subtune.patterns.gemv import gemv
from subtune.patterns.stages import inline


@dataclass(frozen=True, slots=True)
class GemvKnobs:
    """`threads` share a sum, `groups` of them a block, `tile` rows are a thread's; `split` blocks share a sum."""

    threads: int
    groups: int
    lanes: int
    tile: int = 1
    unroll: int = 4
    split: int = 1
    final: int = 8


def schedule(problem: Problem[CUDAModel], knobs: GemvKnobs) -> Kernel | NotApplicable:
    try:
        sch = Schedule(problem.workload.func)
        stages = inline(sch)
        if isinstance(stages, NotApplicable):
            return stages
        if len(stages.anchors) != 1:
            return NotApplicable(f"{len(stages.anchors)} reductions, a product has one")
        info = contraction(sch, stages.anchors[0])
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    if isinstance(info, NotApplicable):
        return info
    form = gemv(info)
    if isinstance(form, NotApplicable):
        return form
    is_across = form.is_across
    tile = knobs.tile
    plan = Plan(
        threads=knobs.threads,
        groups=knobs.groups,
        lanes=knobs.lanes,
        tile=form.vectors if is_across else tile * form.vectors if form.is_swapped else tile,
        batch=1 if is_across or form.is_swapped else form.vectors,
        unroll=knobs.unroll,
        exact=problem.numerics.exact,
    )
    columns = info.n.extent if is_across else 1
    return schedule_lines(problem.workload, plan, columns, knobs.split, knobs.final)
