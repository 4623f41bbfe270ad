"""The anchor of a subgraph as a workload of its own, as op-level tuners see it: no epilogue, its own output dtype.

func(x, w, b, y):  c = conv(x, w);  y = cast(relu(c + b))     ->     func(x, w, c):  c = conv(x, w)
"""

from __future__ import annotations

from typing import Any

from tvm import ir
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.core.workload import CONSTANT_ARGS_ATTR, Workload
from subtune.patterns.stages import inline
from subtune.tir.blocks import root_stages, stage_block, with_stages
from subtune.tir.expressions import variables


def anchor_alone(workload: Workload) -> Workload | NotApplicable:
    """The workload of the anchor (with the paddings it reads) writing its own result, or why there is none."""
    sch = Schedule(workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if len(stages.anchors) != 1:
        return NotApplicable(f"{len(stages.anchors)} reductions: no single anchor op")
    if not stages.outputs:
        return NotApplicable("no epilogue: the op is the subgraph")
    func = sch.mod["main"]
    dropped = {sch.get(block).name_hint for block in stages.outputs}
    kept = [stage for stage in root_stages(func) if stage_block(stage).name_hint not in dropped]
    result = sch.get(stages.anchors[0]).writes[0].source
    used = variables(kept)
    params = [param for param in func.params[: -workload.num_outputs] if param in used]
    constants = {int(i) for i in func.attrs.get(CONSTANT_ARGS_ATTR, ())}
    indices = [i for i, param in enumerate(params) if _index(func.params, param) in constants]
    buffers = [buffer for buffer in func.body.block.alloc_buffers if not buffer.same_as(result) and buffer in used]
    alone = with_stages(func, kept, buffers, [*params, result])
    return Workload.of(alone.with_attr(CONSTANT_ARGS_ATTR, indices), 1)


def _index(params: Any, param: ir.Var) -> int:
    return next(i for i, other in enumerate(params) if other.same_as(param))
