"""Matrix times vector, or times a few of them (M <= 8): the matrix is read once, in 16-byte loads, and never stored.

    matrix [n, k]: `threads` share a row (or `tile` rows) of the matrix, every one of the M vectors is read beside it
    matrix [k, n]: a thread takes `lanes` neighbouring n, `threads` of them share k; a constant is packed [n, k] instead

What the matrix is made of (int4 weights and their scales) is computed in registers, as any prologue.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tvm.s_tir import Schedule, ScheduleError

from subtune.anchor import Contraction, contraction
from subtune.candidate import Candidate
from subtune.cuda import CUDAModel
from subtune.kernel import Kernel, NotApplicable
from subtune.stages import inline
from subtune.templates.cuda.lines import Plan
from subtune.templates.cuda.rowwise import schedule_lines
from subtune.workload import Workload

MAX_VECTORS = 8


def schedule(workload: Workload, candidate: Candidate, device: CUDAModel) -> Kernel | NotApplicable:
    """Knobs: `threads` that share a sum, `groups` of them in a block, `lanes`, `tile` (rows of a thread), `unroll`, `split`."""
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
    form = gemv_form(info)
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


@dataclass(frozen=True, slots=True)
class GemvForm:
    """`rows` x `length` the matrix, `vectors` how many it is multiplied with."""

    rows: int
    length: int
    vectors: int
    is_across: bool
    """The matrix is contiguous along its rows, as [k, n] is."""
    is_swapped: bool
    """The matrix is the first operand: its rows are m, the vectors n."""


def gemv_form(info: Contraction) -> GemvForm | NotApplicable:
    """The product as a matrix with few vectors."""
    if info.of_role("batch") or info.per_group:
        return NotApplicable("a batch of products")
    if info.axes[-1].role != "k" or len(info.of_role("k")) != 1 or any(info.a.windows) or any(info.b.windows):
        return NotApplicable("not a matrix product")
    m, n, k = prod(axis.extent for axis in info.of_role("m")), info.n.extent, info.axes[-1].extent
    if m <= MAX_VECTORS:
        return GemvForm(n, k, m, info.b.axes[-1] == info.n.index, False)
    if n <= MAX_VECTORS and info.a.axes[-1] == info.axes[-1].index:
        return GemvForm(m, k, n, False, True)
    return NotApplicable(f"{min(m, n)} vectors, at most {MAX_VECTORS}")
