"""A thread for every result, which walks its elements one after the other, and what is computed from it.

    block: `threads` neighbouring results;  thread: the reduced axes, `unroll` elements at a time, then the outputs

Neighbouring threads read neighbouring elements where the innermost axis is kept: ArgMax over channels first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.stages import inlined


@dataclass(frozen=True, slots=True)
class EachKnobs:
    """`threads` of a block, `unroll` elements of a thread at a time."""

    threads: int
    unroll: int = 1


def schedule(problem: Problem[CUDAModel], knobs: EachKnobs) -> Kernel | NotApplicable:
    try:
        found = inlined(problem.workload)
        if isinstance(found, NotApplicable):
            return found
        sch, stages = found
        if len(stages.anchors) != 1 or len(stages.outputs) > 1:
            return NotApplicable("more than one reduction or output")
        for producer in stages.producers:
            sch.compute_inline(producer)
        anchor = sch.get(stages.anchors[0])
        kinds = [int(iv.iter_type) == tirx.IterVar.DataPar for iv in anchor.iter_vars]
        if not any(kinds) or kinds != sorted(kinds, reverse=True):
            return NotApplicable("the kept axes do not come first")
        _schedule(sch, stages.anchors[0], stages.outputs[0] if stages.outputs else None, knobs)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    return Kernel(sch.mod["main"])


def _schedule(sch: Schedule, anchor: Any, output: Any, knobs: EachKnobs) -> None:
    kept = sum(int(iv.iter_type) == tirx.IterVar.DataPar for iv in sch.get(anchor).iter_vars)
    loops = sch.get_loops(anchor)[:kept] if output is None else sch.get_loops(output)
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    block, thread = sch.split(fused, [None, knobs.threads])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if output is not None:
        sch.compute_at(anchor, thread)
        for index in range(len(sch.get(anchor).writes)):
            sch.set_scope(anchor, index, "local")
    if knobs.unroll > 1:
        _, inner = sch.split(sch.get_loops(anchor)[-1], [None, knobs.unroll])
        sch.unroll(inner)
