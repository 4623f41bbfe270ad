"""What every template and policy begins with: prologue and epilogue blocks inlined, what is left named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule, ScheduleError

from subtune.backends.cuda.families.gemv_packed.tiling import PackedGemv
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.anchor import (
    Anchor,
    Contraction,
    Elementwise,
    Rowwise,
    Window,
    all_blocks,
    columns,
    contraction,
    is_reduction,
    loads,
    variables,
    window,
)
from subtune.patterns.bottleneck import Bottleneck
from subtune.patterns.bottleneck_recognise import BottleneckForm, bottleneck
from subtune.patterns.chain import Chain
from subtune.patterns.chain_recognise import ChainForm, chain
from subtune.patterns.movement import Crosswise, crosswise


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


_A = TypeVar("_A", Contraction, Window, PackedGemv)


def anchored(
    workload: Workload, read: Callable[[Schedule, Any], _A | NotApplicable]
) -> tuple[Schedule, Stages, _A] | NotApplicable:
    """`workload` inlined, its stages, and its only anchor as `read` understands it; or why that is none.

    Args:
        read: `anchor.contraction`, `anchor.window` or `packed_gemv.packed_gemv`.
    """
    found = _anchored(workload.func, read)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    return sch.copy(), stages, info  # what names a block of one names it in the copy, too


@lru_cache(maxsize=2)
def _anchored(func: Any, read: Callable[[Schedule, Any], Any]) -> tuple[Schedule, Stages, Any] | NotApplicable:
    """The same for all candidates of a workload, and a third of the time to schedule one."""
    sch = Schedule(func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if len(stages.anchors) != 1:
        return NotApplicable(f"{len(stages.anchors)} reductions: no single anchor")
    info = read(sch, stages.anchors[0])
    return info if isinstance(info, NotApplicable) else (sch, stages, info)


def with_stages(func: Any, stages: Sequence[Any], buffers: Sequence[Any], params: Sequence[Any] | None = None) -> Any:
    """`func` whose root block holds `stages` (`anchor.root_stages`) and allocates `buffers`, and nothing else.

    Args:
        params: in place of its own.
    """
    root = func.body.block
    block = SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint,
        tirx.SeqStmt(list(stages)) if len(stages) > 1 else stages[0],
        root.init, list(buffers), root.match_buffers, root.annotations,
    )  # fmt: skip
    own = func.params if params is None else list(params)
    return tirx.PrimFunc(own, SBlockRealize([], True, block), func.ret_type, func.attrs)


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


@dataclass(frozen=True, slots=True)
class Summary:
    """A workload as the policies see it: the anchor's form, or None where only the default schedule applies."""

    anchor: Anchor | Chain | Bottleneck | None
    reason: str


def summarise(workload: Workload) -> Summary:
    """Classify a workload by the structure of its TIR."""
    try:
        sch = Schedule(workload.func)
        reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    except (ScheduleError, ValueError, RuntimeError) as e:
        return Summary(None, f"not made of schedulable blocks: {str(e).strip().splitlines()[-1]}")
    if len(reductions) > 1:
        form = chain(workload.func, workload.num_outputs)
        if isinstance(form, ChainForm):
            return Summary(form.chain, "")
        block = bottleneck(workload.func, workload.num_outputs)
        if isinstance(block, BottleneckForm):
            return Summary(block.block, "")
        return _rowwise(sch, reductions)
    rowwise = _rowwise(sch, reductions) if reductions else None
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return rowwise or Summary(None, stages.reason)
    if not stages.anchors:
        if stages.producers:
            return Summary(None, "stages that cannot be inlined")
        extent = max(_size(arg.shape) for arg in workload.args if arg.is_output)
        turned = crosswise(sch.get(stages.outputs[0])) if len(stages.outputs) == 1 else None
        return Summary(Elementwise(extent, turned if isinstance(turned, Crosswise) else None), "no reduction")
    found: Contraction | Window | NotApplicable = contraction(sch, stages.anchors[0])
    reasons = []
    if isinstance(found, NotApplicable):
        reasons.append(found.reason)
        found = window(sch, stages.anchors[0])
    if not isinstance(found, NotApplicable):
        return Summary(found, "")
    assert rowwise is not None
    return rowwise if rowwise.anchor is not None else Summary(None, "; ".join([*reasons, found.reason]))


def _rowwise(sch: Schedule, reductions: list[Any]) -> Summary:
    """Rows are the axes all reductions share, and come first in every one; columns where those are innermost."""
    by_columns = columns(sch, reductions)
    if not isinstance(by_columns, NotApplicable):
        return Summary(by_columns, "")
    rows, length = None, 1
    for block in reductions:
        spatial: list[int] = []
        reduced: list[int] = []
        for iv in sch.get(block).iter_vars:
            if not isinstance(iv.dom.extent, tirx.IntImm):
                return Summary(None, "symbolic extents")
            kind = int(iv.iter_type)
            if kind == tirx.IterVar.DataPar and reduced:
                return Summary(None, "a reduction is not along the innermost axes")
            (reduced if kind == tirx.IterVar.CommReduce else spatial).append(int(iv.dom.extent))
        if rows is not None and rows != spatial:
            return Summary(None, "the reductions do not share their rows")
        rows, length = spatial, max(length, _size(tuple(reduced)))
    return Summary(Rowwise(_size(tuple(rows or ())), length), "")


def _size(shape: tuple[int | str, ...]) -> int:
    size = 1
    for dim in shape:
        size *= int(dim)
    return size
