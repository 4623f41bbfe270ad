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
from typing import Any

from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.stem.kernel import Sink, Stored, stem_func
from subtune.backends.cuda.families.stem.shape import Stem, StemPacking
from subtune.backends.cuda.families.wgmma.epilogue import epilogue_of
from subtune.backends.cuda.families.wgmma.schedule import source_of
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.store_form import store_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import GemmView, gemm_view
from subtune.patterns.stages import inline


@dataclass(frozen=True, slots=True)
class StemKnobs:
    """`rows` of pixels and `groups` of warps of a block, `blocks_per_sm`."""

    rows: int
    groups: int
    blocks_per_sm: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A first convolution as its kernel computes it: sizes, and the kernel's buffers by the workload's parameters."""

    stem: Stem
    images: int
    tiling: Tiling
    store: Store
    buffers: dict[Any, Any]
    image: Any
    weights: Any
    packing: StemPacking

    def kernel(self, sink: Sink, buffers: tuple[Any, ...], sms: int) -> Kernel:
        """With the parameters `buffers`."""
        grid = min(self.images * sink.bands, sms * self.tiling.blocks_per_sm)
        a, b = self.buffers[self.image], self.buffers[self.weights]
        func = stem_func(buffers, a, b, self.stem, (self.images, grid), self.tiling, sink)
        attrs = {"global_symbol": "main", TIRX_ATTR: 1, "tirx.is_scheduled": 1, "tirx.noalias": True}
        return Kernel(func.with_attrs(attrs), ((list(self.buffers).index(self.weights), self.packing),))


def schedule(problem: Problem[CUDAModel], knobs: StemKnobs) -> Kernel | NotApplicable:
    found = planned(problem.workload, problem, knobs)
    if isinstance(found, NotApplicable):
        return found
    if found.stem.out_height % knobs.rows or found.tiling.m % (64 * knobs.groups):
        return NotApplicable(f"{found.tiling.m} pixels of {knobs.groups} warpgroups, in bands of {knobs.rows} rows")
    sink = Stored(found.store, found.stem, 2 if found.stem.is_copied else 1)
    return found.kernel(sink, tuple(found.buffers.values()), problem.device.sms)


def planned(workload: Workload, problem: Problem[CUDAModel], knobs: StemKnobs) -> Plan | NotApplicable:
    """How the convolution `workload` is computed on the problem's device, or why it is not."""
    if why := wgmma_obstacle(problem):
        return NotApplicable(why)
    sch = Schedule(workload.func)
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
    rows = (1,) * (len(view.rows) - 2) + (stem.rows, stem.out_width)
    tiling = Tiling(rows, columns, 2, knobs.groups, blocks_per_sm=knobs.blocks_per_sm)
    if columns % 16 or columns > 256:
        return NotApplicable(f"{columns} channels")
    params = list(sch.mod["main"].params)
    buffers = {
        p: T.buffer(packing.shape if i == info.b.param else [int(d) for d in p.shape], str(p.dtype), align=16,
                    buffer_name=p.name)
        for i, p in enumerate(params)
    }  # fmt: skip
    store = store_of(epilogue, Walk(view, tiling, dtype, problem.device.sms), buffers)
    if isinstance(store, NotApplicable):
        return store
    images = view.extent(*view.rows[:-2])
    store = replace(store, fetched=())
    return Plan(stem, images, tiling, store, buffers, params[param], params[info.b.param], packing)


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
    if c > 8:
        return NotApplicable(f"{c} channels")
    lead = left % 2
    row = ceil((lead + kw * c) / 8) * 8
    words = extents[-2] * c // 2
    return Stem(extents[-3], words, c, oh, ow, (kh, kw), right.scale, (offsets[-3], (left + lead) // 2), row, rows)
