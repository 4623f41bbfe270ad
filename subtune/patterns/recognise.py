"""What a workload computes, told by the structure of its TIR alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.bottleneck import Bottleneck, BottleneckExpressions, bottleneck_expressions
from subtune.patterns.chain import Chain
from subtune.patterns.chain_copies import ChainWithCopies, CopyingChain, copying_chain
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.elementwise import FEW_INPUTS, Elementwise, TransposedAccess, merged_axes, transposed_access
from subtune.patterns.normed import Normed, normed
from subtune.patterns.pooled import Pooled, pooled
from subtune.patterns.product_copies import ProductWithCopies, product_with_copies
from subtune.patterns.row_product import RowProduct, row_product
from subtune.patterns.rows import Columns, Rowwise, rows_or_columns
from subtune.patterns.sections import sectioned
from subtune.patterns.stages import Stages, anchored, inlined
from subtune.patterns.summed import Summed, summed
from subtune.patterns.window import Window, window
from subtune.tir.blocks import all_blocks, extents_of, is_reduction


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """Only the default schedule applies."""

    reason: str


Pattern = (
    Contraction | Window | Rowwise | Columns | Chain | ChainWithCopies | Bottleneck | Pooled | Summed | Normed
    | RowProduct | ProductWithCopies | Elementwise | Unrecognised
)  # fmt: skip


_READERS: tuple[Callable[[Schedule, Any], Contraction | Window | NotApplicable], ...] = (contraction, window)


def recognise(workload: Workload) -> Pattern:
    """What `workload` computes, as families ask for it; worked out once.

    >>> from subtune import models
    >>> from subtune.pipeline import prepare
    >>> first, *_ = prepare(models.reduced("mlp")).subgraphs
    >>> type(recognise(first.workload)).__name__
    'Contraction'
    """
    return _recognise(workload)


@lru_cache(maxsize=256)
def _recognise(workload: Workload) -> Pattern:
    try:
        sch = Schedule(workload.func)
        reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    except (ScheduleError, ValueError, RuntimeError) as e:
        return Unrecognised(f"not made of schedulable blocks: {str(e).strip().splitlines()[-1]}")
    if not reductions:
        return _elementwise(workload)
    copied = product_with_copies(workload)
    if isinstance(copied, ProductWithCopies) and isinstance(recognise(copied.front), Contraction | RowProduct):
        return copied
    if len(reductions) > 1:
        chain = copying_chain(workload.func, workload.num_outputs)
        if isinstance(chain, CopyingChain):
            return chain.pattern
        bottleneck = bottleneck_expressions(workload.func, workload.num_outputs)
        if isinstance(bottleneck, BottleneckExpressions):
            return bottleneck.pattern
        pooling = pooled(workload.func, workload.num_outputs)
        if isinstance(pooling, Pooled):
            return pooling
        both = summed(workload.func, workload.num_outputs)
        if isinstance(both, Summed):
            return both
        norm = normed(workload.func, workload.num_outputs)
        if isinstance(norm, Normed):
            return norm
        of_rows = row_product(workload.func, workload.num_outputs)
        if isinstance(of_rows, RowProduct):
            return of_rows
        rows = rows_or_columns(sch, reductions)
        return Unrecognised(rows.reason) if isinstance(rows, NotApplicable) else rows
    reasons = []
    for read in _READERS:
        found: tuple[Schedule, Stages, Contraction | Window] | NotApplicable = anchored(workload, read)
        if not isinstance(found, NotApplicable):
            return found[2]
        reasons.append(found.reason)
    rows = rows_or_columns(sch, reductions)
    return Unrecognised("; ".join(dict.fromkeys(reasons))) if isinstance(rows, NotApplicable) else rows


def _elementwise(workload: Workload) -> Elementwise | Unrecognised:
    found = inlined(workload)
    if isinstance(found, NotApplicable):
        return Unrecognised(found.reason)
    sch, stages = found
    if stages.producers:
        return Unrecognised("stages that cannot be inlined")
    extent = max(prod(int(dim) for dim in arg.shape) for arg in workload.args if arg.is_output)
    blocks = [sch.get(output) for output in stages.outputs]
    only = blocks[0] if len(blocks) == 1 else None
    found_access = transposed_access(only, pads=True) if only else None
    access = found_access if isinstance(found_access, TransposedAccess) else None
    rows = {_row(block) for block in blocks}
    row = rows.pop() if len(rows) == 1 else 0
    is_padded = access is not None and access.read < access.extents[-1]
    transposed, padded = (None, access) if is_padded else (access, None)
    return Elementwise(extent, transposed, padded, row, *(_sections(only, workload) if only else ()))


def _sections(block: Any, workload: Workload) -> tuple[int, ...]:
    """`Elementwise`'s `sections`, `sectioned`, `run` and `alike`; () where elements are all chosen alike."""
    inputs = sum(not arg.is_output for arg in workload.args)
    found = sectioned(block, is_last=inputs <= FEW_INPUTS)
    if found is None:
        return ()
    extents = [int(iv.dom.extent) for iv in block.iter_vars]
    is_last = found.axis == len(extents) - 1
    alike = gcd(extents[-1], *(section.begin for section in found.sections)) if is_last else extents[-1]
    return len(found.sections), extents[found.axis], 1 if is_last else extents[-1], alike


def _row(block: Any) -> int:
    axes = merged_axes(block)
    if isinstance(axes, NotApplicable):  # where an operand lies is chosen, or stands in a table: the last axis is a row
        extents = extents_of(block) or [0]
        return extents[-1] if prod(extents) > 1 else 0
    if not axes:  # a scalar has none
        return 0
    return prod(int(block.iter_vars[axis].dom.extent) for axis in axes[-1])
