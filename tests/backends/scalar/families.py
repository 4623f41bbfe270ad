"""Two families: the default, loops as they come, and `unrolled`, whose innermost loop is partly written out."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.s_tir import Schedule

from scalar.model import ScalarModel
from subtune.backends.base import Family, Problem
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.tir.blocks import all_blocks


@dataclass(frozen=True, slots=True)
class Knobs:
    factor: int = 1


def proposals(problem: Problem[ScalarModel]) -> list[Candidate]:
    """The longer the step, the fewer the branches."""
    s = problem.workload.flops / problem.device.operations_per_s
    return [Candidate.of("unrolled", Knobs(factor), s * (1 + 1 / factor)) for factor in (2, 4, 8)]


def unrolled(problem: Problem[ScalarModel], knobs: Knobs) -> Kernel:
    sch = Schedule(problem.workload.func)
    for loops in (sch.get_loops(block) for block in all_blocks(sch)):
        sch.unroll(sch.split(loops[-1], [None, knobs.factor])[1])
    return Kernel(sch.mod["main"], (), sch.trace)


FAMILIES: tuple[Family, ...] = (
    Family("default", 1, Knobs, lambda problem: "", lambda problem: (), lambda p, knobs: Kernel(p.workload.func)),
    Family("unrolled", 1, Knobs, lambda problem: "", proposals, unrolled),
)
