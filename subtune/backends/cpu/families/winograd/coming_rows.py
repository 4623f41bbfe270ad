"""Rows of the input that the next tiles read are asked for while the products of these are computed.

Another kernel wrote them, on any core: asked for when they are needed, they come from L3 or another core's L2, and no
product is computed meanwhile. Measured of 64 channels of 56x56 bytes on one thread of a Zen 4: 0.98 of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil, prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import SBlockRealize
from tvm.tirx import PrimFunc

from subtune.backends.cpu.loops.prefetch import L2_AND_BEYOND, MicroKernel, ask, before_steps
from subtune.core.workload import dtype_bits
from subtune.tir.walk import found

_LINE_BYTES = 64


def prefetch_coming_rows(func: PrimFunc, readers: Collection[str], m: int, out_h: int) -> PrimFunc:
    """`func`, whose outermost loop runs over rows of tiles, asking for what the next row of tiles is the first to read.

    Args:
        readers: names of the blocks that may read the convolution's input, `[n, h, w, c]`; parameters are asked for.
        m: rows of pixels that a tile gives; it reads two more, which the tile above reads too.
        out_h: rows of the result.

    Behind the last row it asks for memory that nobody reads; a prefetch cannot fault.
    """
    sources = _parameters(func, readers)

    def asked(loops: Sequence[Any], _tile: Any) -> list[Any]:
        return [line for source in sources for line in _lines(source, loops, m, out_h)]

    return before_steps(func, MicroKernel("wino_m_update", depth=4, rows=0, reduce=0), asked) if sources else func


def _parameters(func: PrimFunc, readers: Collection[str]) -> list[Any]:
    """The images among what the blocks read."""
    blocks = [realize.block for realize in found(func.body, SBlockRealize) if realize.block.name_hint in readers]
    read = [load.source for block in blocks for load in found(block.body, ir.TensorLoad)]
    return [param for param in func.params if any(param.same_as(source) for source in read) and len(param.shape) == 4]


def _lines(source: Any, loops: Sequence[Any], m: int, out_h: int) -> list[Any]:
    """Of `m` rows, the share of one step of the loops inside that over rows of tiles."""
    rows, *inner = loops
    _, height, width, channels = (int(extent) for extent in source.shape)
    above = max(0, out_h + 2 - height) // 2
    tiles = ceil(out_h / m)
    line = _LINE_BYTES * 8 // dtype_bits(str(source.dtype))
    share = ceil(m * width * channels / line / prod(int(loop.extent) for loop in inner))
    step: Any = tirx.IntImm("int64", 0)
    for loop in inner:
        step = step * loop.extent + loop.loop_var
    start = [rows.loop_var // tiles, rows.loop_var % tiles * m + (m + 2 - above), tirx.IntImm("int64", 0)]
    return [ask(source, [*start, (step * share + i) * line], L2_AND_BEYOND) for i in range(share)]
