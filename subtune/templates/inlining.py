"""The steps every template begins with: prologue and epilogue blocks are inlined, what is left is named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir
from tvm.s_tir import Schedule, ScheduleError

from subtune.anchor import all_blocks, is_reduction, loads, variables
from subtune.kernel import NotApplicable


@dataclass(frozen=True, slots=True)
class Stages:
    """A workload after inlining: `pads` and other kept producers, the `anchors` (reductions), the `outputs`.

    An anchor that writes an output itself is not among `outputs`.
    """

    producers: tuple[Any, ...]
    anchors: tuple[Any, ...]
    outputs: tuple[Any, ...]


def inline(sch: Schedule) -> Stages | NotApplicable:
    """Inline every injective block that is neither an output nor a padding that an anchor re-reads by windows."""
    output_names = {sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))}
    for block_rv in all_blocks(sch):
        block = sch.get(block_rv)
        if is_reduction(block) or block.name_hint in output_names:
            continue
        if _is_conditional(block) and any(_reads_windows(sch, consumer) for consumer in sch.get_consumers(block_rv)):
            continue
        try:
            sch.compute_inline(block_rv)
        except ScheduleError as e:
            return NotApplicable(f"block {block.name_hint} cannot be inlined: {str(e).strip().splitlines()[-1]}")
    return classify(sch)


def classify(sch: Schedule) -> Stages | NotApplicable:
    """Name the stages of a function whose injective blocks have been inlined."""
    output_names = {sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))}
    producers, anchors, outputs = [], [], []
    seen_anchor = False
    for block_rv in all_blocks(sch):
        block = sch.get(block_rv)
        if is_reduction(block):
            anchors.append(block_rv)
            seen_anchor = True
        elif block.name_hint in output_names:
            outputs.append(block_rv)
        elif not seen_anchor:
            producers.append(block_rv)
        else:
            return NotApplicable(f"block {block.name_hint} between the anchor and the outputs cannot be inlined")
    return Stages(tuple(producers), tuple(anchors), tuple(outputs))


def _is_conditional(block: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        block.body, (ir.Call, lambda call: found.append(call) if "if_then_else" in str(call.op) else None), order="post"
    )
    return bool(found)


def _reads_windows(sch: Schedule, block_rv: Any) -> bool:
    block = sch.get(block_rv)
    if not is_reduction(block):
        return False
    axes = {iv.var for iv in block.iter_vars}
    return any(len(variables(i) & axes) > 1 for load in loads(block.body) for i in load.indices)
