"""What every schedule begins with: prologue and epilogue blocks inlined, what is left named; once for a workload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.tir.blocks import all_blocks, is_costly, is_reduction
from subtune.tir.expressions import is_conditional, loads, variables

_T = TypeVar("_T")


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
        if is_conditional(block.body) and any(
            _reads_windows(sch, consumer) for consumer in sch.get_consumers(block_rv)
        ):
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


def inlined(workload: Workload) -> tuple[Schedule, Stages] | NotApplicable:
    """`workload` inlined, a schedule of one's own, and its stages."""
    found = _inlined(workload.func)
    return found if isinstance(found, NotApplicable) else (found[0].copy(), found[1])


def reduces_several(workload: Workload) -> bool:
    """Whether the only reduction makes several values at once: an ArgMax the largest, and where it is."""
    found = inlined(workload)
    if isinstance(found, NotApplicable) or len(found[1].anchors) != 1:
        return False
    return not isinstance(found[0].get(found[1].anchors[0]).body, tirx.BufferStore)


def anchored(
    workload: Workload, read: Callable[[Schedule, Any], _T | NotApplicable]
) -> tuple[Schedule, Stages, _T] | NotApplicable:
    """`workload` inlined, its stages, and its only anchor as `read` understands it; or why that is none.

    Args:
        read: `contraction`, `window` or `packed_gemv`.
    """
    found = _anchored(workload.func, read)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    return sch.copy(), stages, info  # what names a block of one names it in the copy, too


@lru_cache(maxsize=4)
def _inlined(func: PrimFunc) -> tuple[Schedule, Stages] | NotApplicable:
    """The same for all that recognises a workload, and for all its candidates: a third of the time to schedule one."""
    sch = Schedule(func)
    try:
        stages = inline(sch)
    except ScheduleError as e:
        return NotApplicable(f"not made of schedulable blocks: {str(e).strip().splitlines()[-1]}")
    return stages if isinstance(stages, NotApplicable) else (sch, stages)


@lru_cache(maxsize=4)
def _anchored(func: PrimFunc, read: Callable[[Schedule, Any], Any]) -> tuple[Schedule, Stages, Any] | NotApplicable:
    found = _inlined(func)
    if isinstance(found, NotApplicable):
        return found
    sch, stages = found
    if len(stages.anchors) != 1:
        return NotApplicable(f"{len(stages.anchors)} reductions: no single anchor")
    info = read(sch, stages.anchors[0])
    return info if isinstance(info, NotApplicable) else (sch, stages, info)


def _reads_windows(sch: Schedule, block_rv: Any) -> bool:
    block = sch.get(block_rv)
    if not is_reduction(block):
        return False
    axes = {iv.var for iv in block.iter_vars}
    return any(len(variables(i) & axes) > 1 for load in loads(block.body) for i in load.indices)


_SMALL = 8
"""A stage with so many times fewer elements than the output is computed for itself."""


def elements_inlined(workload: Workload) -> tuple[Schedule, str] | NotApplicable:
    """The workload with its stages of elements inlined, and the name of its one output. Raises ScheduleError."""
    sch = Schedule(workload.func)
    outputs = [sch.get(b).name_hint for b in sch.get_output_blocks(sch.get_sblock("root"))]
    if len(outputs) != 1:
        return NotApplicable("more than one output")
    inline_elements(sch, outputs[0])
    return sch, outputs[0]


def inline_elements(sch: Schedule, output_name: str) -> None:
    """Inline what is computed for every element; what is computed once for a column (its scale) stays a stage."""
    size = iterations(sch, sch.get_sblock(output_name))
    for name in [sch.get(b).name_hint for b in all_blocks(sch)]:
        block = sch.get_sblock(name)
        if name == output_name or is_reduction(sch.get(block)) or iterations(sch, block) * _SMALL <= size:
            continue
        if is_costly(sch.get(block)) and len(sch.get_consumers(block)) > 1:
            continue
        sch.compute_inline(block)


def iterations(sch: Schedule, block: Any) -> int:
    return prod(int(iv.dom.extent) for iv in sch.get(block).iter_vars)
