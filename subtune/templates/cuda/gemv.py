"""Matrix times vector, or times a few of them (M <= 8): the matrix is read once, in 16-byte loads, and never stored.

    matrix [n, k]: `threads` share a row (or `tile` rows) of the matrix, every one of the M vectors is read beside it
    matrix [k, n]: a thread takes `lanes` neighbouring n, `threads` of them share k; a constant is packed [n, k] instead

What the matrix is made of (int4 weights and their scales) is computed in registers, as any prologue.
"""

from __future__ import annotations

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
    vectors = vectors_of(info)
    if isinstance(vectors, NotApplicable):
        return vectors
    is_across = is_along_n(info)
    tile = int(candidate.get("tile") or 1)
    plan = Plan(
        threads=int(candidate["threads"]),
        groups=int(candidate["groups"]),
        lanes=int(candidate["lanes"]),
        tile=vectors if is_across else tile,
        batch=1 if is_across else vectors,
        unroll=int(candidate.get("unroll") or 4),
        exact=device.exact_math,
    )
    columns = info.n.extent if is_across else 1
    return schedule_lines(workload, plan, columns, int(candidate.get("split") or 1), int(candidate.get("final") or 8))


def vectors_of(info: Contraction) -> int | NotApplicable:
    """M, where it is small and there is no batch."""
    if info.of_role("batch") or info.per_group:
        return NotApplicable("a batch of products")
    if info.axes[-1].role != "k" or any(info.a.windows) or any(info.b.windows):
        return NotApplicable("not a matrix product")
    vectors = prod(axis.extent for axis in info.of_role("m"))
    return vectors if vectors <= MAX_VECTORS else NotApplicable(f"{vectors} vectors, at most {MAX_VECTORS}")


def is_along_n(info: Contraction) -> bool:
    """Whether the matrix is contiguous along n, as [k, n] is."""
    return info.b.axes[-1] == info.n.index
