"""Elementwise subgraphs: one loop nest at the speed of memory.

`flat`: all loops fused, for operands of one layout; `rows`: outer loops parallel, the innermost vectorised, for
broadcasts; `tile`: a square tile of the last axis and the axis an operand is contiguous along, for transposes. With the
knob `ahead`, what lies a page behind is asked for.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.prefetch import prefetch_rows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.stages import inline
from subtune.tir.tile import extent_of, vector_width

_MAX_UNROLLED = 16
"""Vectors of a row written one after the other: which of several joined inputs each comes from is then known."""


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    sch = Schedule(workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers:
        return NotApplicable("not an elementwise workload")
    narrowest = min(dtype_bits(arg.dtype) for arg in workload.args if arg.is_output)
    lanes = device.lanes(narrowest) if bool(candidate["wide"]) else device.lanes()
    try:
        for output in stages.outputs:
            outer = _nest(sch, output, str(candidate["shape"]), lanes, int(candidate["unroll"]))
            if outer is not None and not candidate.is_serial:
                sch.parallel(outer)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    if not candidate.get("ahead"):
        return Kernel(sch.mod["main"], (), sch.trace)
    return Kernel(prefetch_rows(sch.mod["main"], [sch.get(output).name_hint for output in stages.outputs]))


def _nest(sch: Schedule, block: Any, shape: str, lanes: int, unroll: int) -> Any | None:
    """Arrange the loops; the one to run in parallel, or None for a scalar."""
    loops = sch.get_loops(block)
    if not loops:
        return None
    if shape == "flat":
        fused = sch.fuse(*loops)
        outer, inner, vec = sch.split(fused, [None, unroll, vector_width(extent_of(sch, fused), lanes)])
        sch.unroll(inner)
        sch.vectorize(vec)
        return outer
    *rows, last = loops
    if shape == "tile" and rows:
        across = rows[-1] if extent_of(sch, rows[-1]) > 1 else max(rows, key=lambda loop: extent_of(sch, loop))
        rows = [row for row in rows if row is not across]
        ao, ai = sch.split(across, [None, vector_width(extent_of(sch, across), lanes)])
        lo, li = sch.split(last, [None, vector_width(extent_of(sch, last), lanes)])
        sch.reorder(*rows, ao, lo, ai, li)
        outer = sch.fuse(*rows, ao, lo)
        sch.unroll(ai)
        sch.vectorize(li)
        return outer
    width = vector_width(extent_of(sch, last), lanes)
    if width == 1:
        return sch.fuse(*rows) if rows else last
    lo, vec = sch.split(last, [None, width])
    sch.vectorize(vec)
    if not rows or extent_of_all(sch, rows) == 1:
        return lo
    if extent_of(sch, lo) <= _MAX_UNROLLED:
        sch.unroll(lo)
    return sch.fuse(*rows)


def extent_of_all(sch: Schedule, loops: list[Any]) -> int:
    size = 1
    for loop in loops:
        size *= extent_of(sch, loop)
    return size
