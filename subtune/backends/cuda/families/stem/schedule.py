"""A network's first convolution on Hopper: a few input channels (RGB), whose windows are no rows of 128 bytes.

A block computes whole rows of output pixels of one image. It copies the input rows they need, padding included, to
shared memory; there, the `KW * C` values of one window row are contiguous, so the tensor cores' fragments of A are read
straight from the patch (no im2col), while the weights, packed `[N, KH * (KW * C up to a multiple of 8)]`, come by TMA.
A fragment is read in words of two elements: where the padding is odd, a zero weight stands before each window row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.epilogue import epilogue_of
from subtune.backends.cuda.families.wgmma.kernel import instruction
from subtune.backends.cuda.families.wgmma.schedule import source_of
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.store_form import store_of
from subtune.backends.cuda.families.wgmma.tiling import Tiling, wgmma_obstacle
from subtune.backends.cuda.families.wgmma.tma import copy_instruction
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.contraction import contraction
from subtune.patterns.gemm_view import GemmView, gemm_view
from subtune.patterns.stages import inline


@dataclass(frozen=True, slots=True)
class StemPacking:
    """OHWI weights to `[O, k]`: `lead` zeros, one window row, zeros up to `row`; zeros up to a multiple of 64."""

    original: tuple[int, ...]
    lead: int
    row: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.original[0], ceil(self.original[1] * self.row / 64) * 64

    def __call__(self, array: np.ndarray) -> np.ndarray:
        o, kh, kw, c = self.original
        packed = np.zeros((o, kh, self.row), array.dtype)
        packed[:, :, self.lead : self.lead + kw * c] = array.reshape(o, kh, kw * c)
        return np.pad(packed.reshape(o, kh * self.row), [(0, 0), (0, self.shape[1] - kh * self.row)])


@dataclass(frozen=True, slots=True)
class Stem:
    """Sizes of the convolution: `rows` of output pixels to a block; `row` elements of a window row, zeros included."""

    height: int
    width: int  # of a row of the input, in words of two elements
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    stride: int
    before: tuple[int, int]  # padding above and, in words, to the left
    row: int
    rows: int

    @property
    def pitch(self) -> int:
        """Words from one row of the patch to the next."""
        return ceil(((self.out_width - 1) * self.stride * self.channels + self.row) / 8) * 4

    @property
    def patch_rows(self) -> int:
        """One more than the windows cover: the last k16 may reach beyond the last window row."""
        return (self.rows - 1) * self.stride + self.kernel[0] + 1

    @property
    def k16(self) -> int:
        return ceil(self.kernel[0] * self.row / 16)


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
    func = stem_func(tuple(buffers.values()), a, b, stem, images, view, tiling, store)
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


# long: one kernel in TVMScript, whose roles share barriers, buffers and indices
def stem_func(
    params: tuple[Any, ...], a: Any, b: Any, stem: Stem, images: int, view: GemmView, tiling: Tiling, store: Store
) -> Any:
    dtype = str(b.dtype)
    columns, blocks = tiling.columns, stem.out_height // stem.rows
    slices = int(b.shape[1]) // 64
    map_arguments = [int(b.shape[1]), columns, int(b.shape[1]) * 2, 64, columns, 1, 1, 0, 3, 2, 0]
    copy, multiply = copy_instruction(2), instruction(dtype, columns)
    threads = 128 * tiling.consumers
    words = stem.patch_rows * stem.pitch
    m_tiles = tiling.m // 64 // tiling.consumers
    sums_count = columns // 2
    step = stem.stride * stem.channels // 2  # words from one pixel's window to the next one's

    def declare() -> None:
        for param in params:
            T.arg(param.name, param)

    def corner(image: Any, first_row: Any) -> dict[int, Any]:
        at: dict[int, Any] = {view.n: tirx.const(0, "int32")}
        at |= dict(zip(view.rows, [image] * (len(view.rows) - 2) + [first_row, tirx.const(0, "int32")], strict=True))
        return at

    def pixel(m: Any) -> Any:
        """First word of a pixel's window."""
        return m // stem.out_width * (stem.stride * stem.pitch) + m % stem.out_width * step

    def inside(r: Any, c: Any) -> Any:
        return tirx.all(r >= 0, r < stem.height, c >= 0, c < stem.width)

    def registers(local: Any, begin: Any, count: int) -> list[Any]:
        return [local[begin + i] for i in range(count)]

    def wide(index: Any, factor: int) -> Any:
        return T.uint64(factor) * T.cast(index, "uint64")

    def of_k(j: Any, h: Any) -> Any:
        """Words from the first of a window to element `16 j + 8 h` of k."""
        k = j * 16 + h * 8
        return k // stem.row * stem.pitch + k % stem.row // 2

    # fmt: off
    @T.prim_func(check_well_formed=False)
    def main() -> None:
        declare()
        map_b: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_b, dtype, 2, b.data, *map_arguments)
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": tiling.blocks_per_sm})
        block = T.cta_id([images * blocks])
        tid = T.thread_id([threads])
        source = T.decl_buffer((images * stem.height * stem.width,), "uint32", data=a.data)
        pool = T.SMEMPool()
        weights = pool.alloc((slices * columns * 64,), dtype, align=1024)
        patch = pool.alloc((words,), "uint32", align=128)
        staging = pool.alloc((store.shared_elements(),), store.dtype, align=128)
        arrived = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        group: T.let[T.int32] = T.tvm_warp_shuffle(0xFFFFFFFF, tid // 128, 0, 32, 32)
        lane: T.let[T.int32] = tid % 128
        image: T.let[T.int32] = block // blocks
        top: T.let[T.int32] = block % blocks * stem.rows
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(arrived.ptr_to([0]), T.uint32(1))
            T.ptx.fence.proxy.async_.shared__cta()
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(arrived.ptr_to([0]), T.uint32(slices * columns * 128))
            for i in T.unroll(slices):
                T.ptx[copy](weights.ptr_to([i * columns * 64]), T.address_of(map_b), i * 64, 0, arrived.ptr_to([0]))
        for turn in T.unroll(ceil(words / threads)):
            w: T.let[T.int32] = turn * threads + tid
            if w < words:
                r: T.let[T.int32] = top * stem.stride - stem.before[0] + w // stem.pitch
                c: T.let[T.int32] = w % stem.pitch - stem.before[1]
                patch[w] = T.if_then_else(inside(r, c), source[(image * stem.height + r) * stem.width + c], T.uint32(0))
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(arrived.ptr_to([0]), 0)
        sums = T.alloc_local((sums_count,), "float32")
        pair = T.alloc_local((stem.k16 * 4,), "uint32")
        desc_b: T.uint64 = T.uint64(0)
        T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_b), weights.ptr_to([0]), 1, 64, 3)
        for i in T.serial(m_tiles):
            first: T.let[T.int32] = (i * tiling.consumers + group) * 64
            upper: T.let[T.int32] = pixel(first + lane // 32 * 16 + lane % 32 // 4) + lane % 4
            lower: T.let[T.int32] = pixel(first + lane // 32 * 16 + lane % 32 // 4 + 8) + lane % 4
            for j in T.unroll(stem.k16):
                for h in T.unroll(2):
                    pair[j * 4 + h * 2] = patch[upper + of_k(j, h)]
                    pair[j * 4 + h * 2 + 1] = patch[lower + of_k(j, h)]
            T.ptx.wgmma.fence.sync.aligned()
            for j in T.unroll(stem.k16):
                T.ptx[multiply](
                    *registers(sums, 0, sums_count), *registers(pair, j * 4, 4),
                    desc_b + wide(j // 4, columns * 128 // 16) + wide(j % 4, 2),
                    j > 0, 1, 1, 0)
            T.ptx.wgmma.commit_group.sync.aligned()
            T.ptx.wgmma.wait_group.sync.aligned(0)
            store.emit(sums, staging, corner(image, top), first, group, lane, 1)
    # fmt: on
    return main
