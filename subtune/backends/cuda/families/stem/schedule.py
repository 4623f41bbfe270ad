"""A network's first convolution on Hopper: a few input channels (RGB), whose windows are no rows of 128 bytes.

A block computes whole rows of output pixels of one image, and then of another. The input rows they need, padding
included, are copied to shared memory. There the `KW * C` values of one window row are contiguous, so the tensor cores'
fragments of A are read straight from the patch (no im2col). The weights, packed `[N, KH * (KW * C up to a multiple of
8)]`, are copied once. A fragment is read in words of two elements: where the padding is odd, a zero weight stands
before each window row. `kernel` has the code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.stem.kernel import stem_func
from subtune.backends.cuda.families.stem.shape import Stem, StemPacking
from subtune.backends.cuda.families.wgmma.epilogue import epilogue_of
from subtune.backends.cuda.families.wgmma.schedule import source_of
from subtune.backends.cuda.families.wgmma.store_form import store_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import GemmView, gemm_view
from subtune.patterns.stages import inline


@dataclass(frozen=True, slots=True)
class StemKnobs:
    """`rows` of pixels and `groups` of warps of a block, `blocks_per_sm`."""

    rows: int
    groups: int
    blocks_per_sm: int


def schedule(problem: Problem[CUDAModel], knobs: StemKnobs) -> Kernel | NotApplicable:
    if why := wgmma_obstacle(problem):
        return NotApplicable(why)
    sch = Schedule(problem.workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable) or len(stages.anchors) != 1:
        return NotApplicable("no single contraction")
    info = contraction(sch, stages.anchors[0])
    if isinstance(info, NotApplicable):
        return info
    view = gemm_view(info)
    if isinstance(view, NotApplicable):
        return view
    epilogue = epilogue_of(sch, stages, info)
    source = source_of(sch, stages, info)
    if isinstance(epilogue, NotApplicable):
        return epilogue
    if isinstance(source, NotApplicable):
        return source
    param, extents, offsets = source
    dtype = info.a.dtype
    if dtype not in ("float16", "bfloat16") or info.b.dtype != dtype or not info.b.is_constant or view.packs:
        return NotApplicable("a stem multiplies 16-bit activations by constant OHWI weights")
    stem = _stem(view, extents, offsets, knobs.rows)
    if isinstance(stem, NotApplicable):
        return stem
    weights = tuple(d for d in info.b.shape)
    packing = StemPacking(weights, stem.before[1] * 2 - offsets[-2] * stem.channels, stem.row)
    columns = weights[0]
    groups = knobs.groups
    rows = (1,) * (len(view.rows) - 2) + (stem.rows, stem.out_width)
    tiling = Tiling(rows, columns, 2, groups, blocks_per_sm=knobs.blocks_per_sm)
    if columns % 16 or columns > 256 or tiling.m % (64 * groups):
        return NotApplicable(f"{columns} channels, {tiling.m} pixels of {groups} warpgroups")
    params = list(sch.mod["main"].params)
    buffers = {
        p: T.buffer(packing.shape if i == info.b.param else [int(d) for d in p.shape], str(p.dtype), align=16,
                    buffer_name=p.name)
        for i, p in enumerate(params)
    }  # fmt: skip
    store = store_of(epilogue, Walk(view, tiling, dtype, problem.device.sms), buffers)
    if isinstance(store, NotApplicable):
        return store
    store = replace(store, fetched=())
    images = view.extent(*view.rows[:-2])
    a, b = buffers[params[param]], buffers[params[info.b.param]]
    grid = min(images * stem.out_height // stem.rows, problem.device.sms * knobs.blocks_per_sm)
    func = stem_func(tuple(buffers.values()), a, b, stem, (images, grid), store)
    attrs = {"global_symbol": "main", TIRX_ATTR: 1, "tirx.is_scheduled": 1, "tirx.noalias": True}
    return Kernel(func.with_attrs(attrs), ((info.b.param, packing),))


def _stem(view: GemmView, extents: tuple[int, ...], offsets: tuple[int, ...], rows: int) -> Stem | NotApplicable:
    if len(view.a) not in (3, 4) or len(view.rows) != len(view.a) - 1 or len(view.steps) != 2 or len(view.b) != 4:
        return NotApplicable("no 2-D convolution")
    down, right, channel = view.a[-3:]
    if (down.window, right.window) != view.steps or (down.dilation, right.dilation) != (1, 1):
        return NotApplicable("a window with holes")
    if down.scale != right.scale or channel.group != view.inner:
        return NotApplicable("strides that differ")
    kh, kw = (view.groups[g].extent for g in view.steps)
    oh, ow = (view.groups[g].extent for g in view.rows[-2:])
    c, left = extents[-1], offsets[-2] * extents[-1]
    if right.scale * c % 2 or extents[-2] * c % 2:
        return NotApplicable("windows or rows of an odd number of elements")
    if oh % rows or c > 8:
        return NotApplicable(f"{oh} rows of pixels in blocks of {rows}, {c} channels")
    lead = left % 2
    row = ceil((lead + kw * c) / 8) * 8
    words = extents[-2] * c // 2
    return Stem(extents[-3], words, c, oh, ow, (kh, kw), right.scale, (offsets[-3], (left + lead) // 2), row, rows)
