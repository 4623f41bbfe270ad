"""The default schedule of a chain of halves without the roundings between its products: what the others are judged on.

A file of halves rounds the scores of its attention. A kernel that keeps them does not, and is closer to what is right:
of scores near sixteen, rounding to bfloat16 makes errors of 3 % in their exps.
"""

from __future__ import annotations

from dataclasses import replace

from subtune.backends.base import Family, NoKnobs, proposes_nothing
from subtune.backends.cpu.families import default
from subtune.backends.cpu.family import LIBM, CPUProblem
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import HALVES
from subtune.patterns.chain import Chain
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.rebuild import in_float32


def schedule(problem: CPUProblem, knobs: NoKnobs) -> Kernel | NotApplicable:
    if not any(arg.dtype in HALVES for arg in problem.workload.args) or not isinstance(problem.pattern, Chain):
        return NotApplicable("nothing is rounded between two products")
    func = in_float32(problem.workload.func)
    blocks = [stage_block(stage) for stage in root_stages(func)]
    stages = [nest(block.name_hint, block.iter_vars, {}, block.body, block.init) for block in blocks]
    exact = replace(problem.workload, func=with_stages(func, stages, func.body.block.alloc_buffers))
    return replace(default.schedule(replace(problem, workload=exact), default.Knobs()), trace=None)


FAMILY = Family("reference", 1, NoKnobs, proposes_nothing, lambda problem: (), schedule, (LIBM,))
