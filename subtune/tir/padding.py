"""Reductions whose extent is no whole number of vectors, extended by what changes nothing."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import is_load_of


def pad_reductions(func: PrimFunc, multiple: int) -> PrimFunc | None:
    """`func` with every reduction over one axis extended to a multiple, the rest adding the reduction's identity.

    C = C + x[k]   k < 197     ->     C = C + (x[k] if k < 197 else 0)   k < 208

    Shorter reductions than `multiple` stay as they are. None when there is nothing to extend.
    """
    stages = root_stages(func)
    padded = [_pad_reduction(stage, multiple) for stage in stages]
    if all(new is old for new, old in zip(padded, stages, strict=True)):
        return None
    return with_stages(func, padded, func.body.block.alloc_buffers)


def _pad_reduction(stage: Any, multiple: int) -> Any:
    block = stage_block(stage)
    reduced = [i for i, iv in enumerate(block.iter_vars) if int(iv.iter_type) == tirx.IterVar.CommReduce]
    if len(reduced) != 1 or block.init is None or not isinstance(block.body, tirx.BufferStore):
        return stage
    (axis,) = reduced
    extent = int(block.iter_vars[axis].dom.extent)
    value = block.body.value
    if extent % multiple == 0 or extent < multiple or not isinstance(value, tirx.Add | tirx.Max | tirx.Min | tirx.Mul):
        return stage
    inside = block.iter_vars[axis].var < tirx.const(extent, "int64")
    sides = [
        side if is_load_of(side, block.body.buffer) else tirx.if_then_else(inside, side, block.init.value)
        for side in (value.a, value.b)
    ]
    body = tirx.BufferStore(block.body.buffer, type(value)(*sides), list(block.body.indices))
    padded = -(-extent // multiple) * multiple
    return nest(block.name_hint, block.iter_vars, {axis: padded}, body, block.init)
