"""Blocks of a schedule that sum over tiles -> calls of the functions that multiply them (`amx_tiles`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.amx_tiles import TileBlock
from subtune.backends.cpu.math.llvm_text import inside_root
from subtune.tir.blocks import root_stages, with_stages
from subtune.tir.walk import holds, with_body


def with_calls(
    func: PrimFunc, names: Collection[str], block: TileBlock, passes: int = 1, row_blocks: int = 0
) -> PrimFunc:
    """`func` with the blocks `names` as calls, and round them, within the outermost loops, what the calls need.

    Each of them reads a region of A's tiles (as `block` stores them), one of B's (int32), and writes a block of C, all
    of it.

    Args:
        passes: so many blocks of rows, one after the other, read the same columns of B.
        row_blocks: that hold rows, where there are others behind them: these are not multiplied. 0: all do.
    """

    def multiply(realize: Any) -> Any:
        one = realize.block
        if one.name_hint not in names:
            return realize
        (c,) = one.writes
        a, b = (
            min((region for region in one.reads if str(region.source.dtype) == dtype), key=_constant_begins)
            for dtype in (block.stored, "int32")
        )
        (steps,) = (int(r.extent) for r in a.region[-3:-2])
        begin = [tirx.address_of(tirx.BufferLoad(x.source, [r.min for r in x.region])) for x in (a, b, c)]
        end = tirx.address_of(tirx.BufferLoad(c.source, [r.min + r.extent - 1 for r in c.region]))
        row_block = tirx.floordiv(c.region[-2].min, tirx.const(block.m * block.rows, "int64"))
        pass_ = tirx.floormod(row_block, tirx.const(passes, "int64"))
        body = block.multiply(begin[0], begin[1], begin[2], end, steps, pass_)
        if row_blocks:
            body = tirx.IfThenElse(row_block < tirx.const(row_blocks, "int64"), body, None)
        call = SBlock(one.iter_vars, one.reads, one.writes, one.name_hint, body)
        return SBlockRealize(realize.iter_values, realize.predicate, call)

    stages = []
    for stage in root_stages(func):
        if any(holds(stage, name) for name in names):
            body = tvm_ffi.structural_map(stage.body, (SBlockRealize, multiply))
            inner = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
            stage = with_body(stage, tirx.SeqStmt([block.begin(), *inner, block.end()]))
        stages.append(stage)
    new = with_stages(func, stages, func.body.block.alloc_buffers)
    return new.with_body(inside_root(new.body, block.instructions))


def _constant_begins(region: Any) -> list[int]:
    """Of several regions of one buffer, those of its parts, the first one has the least."""
    return [int(r.min) for r in region.region if isinstance(r.min, tirx.IntImm)]
