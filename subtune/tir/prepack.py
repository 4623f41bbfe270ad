"""A constant's packing leaves the kernel: the block that computes it goes, the packed buffer becomes the parameter.

    func(x, w, y):  p[...] = w[...];  y[...] = f(x, p)     ->     func(x, p, y):  y[...] = f(x, p)

The packing itself is done once, at compile time (`subtune.core.kernel.Packing`).
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.tirx import PrimFunc

from subtune.tir.blocks import root_stages, with_stages

PREPROC_ATTR = "meta_schedule.layout_rewrite_preproc"
"""MetaSchedule's mark of a block that only packs a constant: TVM's SplitLayoutRewritePreproc takes such blocks out."""


def split_prepack(func: PrimFunc, param: int) -> PrimFunc:
    """`func` with the blocks that only rearrange parameter `param` removed; the last buffer they write takes its place.

    All readers of the parameter must be such blocks: copies at the root of the function.
    """
    stages = root_stages(func)
    source = func.params[param]
    kept = []
    for stage in stages:
        blocks: list[Any] = []
        tvm_ffi.structural_walk(stage, (SBlock, blocks.append), order="pre")
        reads = {region.source for block in blocks for region in block.reads}
        if source in reads and len(reads) == 1 and _is_copy(blocks):
            source = blocks[-1].writes[0].source
        else:
            assert source not in reads or not source.same_as(func.params[param]), "the parameter is read elsewhere"
            kept.append(stage)
    assert not source.same_as(func.params[param]), "no block packs the parameter"
    params = list(func.params)
    params[param] = source
    buffers = [b for b in func.body.block.alloc_buffers if not b.same_as(source) and _is_used(b, kept)]
    return with_stages(func, kept, buffers, params)


def _is_copy(blocks: list[Any]) -> bool:
    return len(blocks) == 1 and isinstance(blocks[0].body, tirx.BufferStore) and blocks[0].init is None


def _is_used(buffer: Any, stages: list[Any]) -> bool:
    found: list[Any] = []
    for stage in stages:
        tvm_ffi.structural_walk(
            stage,
            (SBlock, lambda b: found.extend(r.source for r in (*b.reads, *b.writes) if r.source.same_as(buffer))),
            order="pre",
        )
    return bool(found)
