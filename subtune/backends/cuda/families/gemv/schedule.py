"""Matrix times vector, or times a few of them (M <= 8): the matrix is read once, in 16-byte loads, and never stored.

    matrix [n, k]: `threads` share a row (or `tile` rows) of the matrix, every one of the M vectors is read beside it
    matrix [k, n]: a thread takes `lanes` neighbouring n, `threads` of them share k

What the matrix is made of (int4 weights and their scales) is computed in registers, as any prologue.
"""

from __future__ import annotations

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.rowwise.schedule import schedule_lines
from subtune.backends.cuda.source.lines import Plan
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.contraction import contraction
from subtune.patterns.gemv import gemv
from subtune.patterns.stages import inline


def schedule(workload: Workload, candidate: Candidate, device: CUDAModel) -> Kernel | NotApplicable:
    """Knobs: `threads` that share a sum, `groups` in a block, `lanes`, `tile` (rows of a thread), `unroll`, `split`."""
    try:
        sch = Schedule(workload.func)
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
    tile = int(candidate.get("tile") or 1)
    plan = Plan(
        threads=int(candidate["threads"]),
        groups=int(candidate["groups"]),
        lanes=int(candidate["lanes"]),
        tile=form.vectors if is_across else tile * form.vectors if form.is_swapped else tile,
        batch=1 if is_across or form.is_swapped else form.vectors,
        unroll=int(candidate.get("unroll") or 4),
        exact=device.exact_math,
    )
    columns = info.n.extent if is_across else 1
    return schedule_lines(workload, plan, columns, int(candidate.get("split") or 1), int(candidate.get("final") or 8))
