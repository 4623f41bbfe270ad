"""Matrix products on tensor cores: `mma.sync` fed by `ldmatrix` from shared memory, filled by asynchronous copies.

    for block (m tile, n tile; rasterised) [, part of K]:
      for k tile, `stages` of them in flight:   A', B' -> shared memory, 16 bytes a thread, swizzled
        for k step of 32 bytes:                 ldmatrix -> fragments;  mma.sync 16x16 per pair of fragments
      sums -> shared memory -> epilogue, row by row, 16-byte stores

The prologue is computed on the way in, the epilogue on the float32 (int32) sums on the way out. With split-K the sums
of every part go to memory, and a second kernel adds them and computes the epilogue.
Sources: PTX ISA; CUTLASS' documentation of its GEMM hierarchy; measured in the project's recipes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.mma.intrinsics import LANES, TILE, MmaIntrinsics, mma_intrinsics
from subtune.backends.cuda.families.mma.tiling import (
    MmaTile,
    copies_async,
    inner_of,
    multiplies_whole,
    splits_operands,
    tensor_core_obstacle,
    tile_obstacle,
)
from subtune.backends.cuda.lowering.free_rows import FREE_COLUMNS_ATTR, FREE_ROWS_ATTR
from subtune.backends.cuda.lowering.swizzle import SWIZZLE_ATTR, can_swizzle
from subtune.backends.cuda.source.epilogue import COMPUTED, inline_epilogue, merge_epilogue, store_rows, sum_parts
from subtune.backends.cuda.source.gemm_form import GemmBlocks, gemm_form, widened
from subtune.backends.many_shapes import TileShape
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.numerics import BYTES
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.gemm import Gemm, anchor_of, gemm, inline_producers
from subtune.tir.prepack import split_prepack


@dataclass(frozen=True, slots=True)
class MmaKnobs:
    """Those of `MmaTile`; `pack`: the constant B is packed as `ldmatrix` wants it."""

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int
    raster: int = 1
    split: int = 1
    pack: bool = False

    @property
    def tile_shape(self) -> TileShape:
        return TileShape(self.bm)

    @property
    def tile(self) -> MmaTile:
        return MmaTile(*(getattr(self, name) for name in MmaTile.__slots__))


def schedule(problem: Problem[CUDAModel], knobs: MmaKnobs) -> Kernel | NotApplicable:
    workload, device = problem.workload, problem.device
    product = gemm(workload)
    if isinstance(product, NotApplicable):
        return product
    tile = knobs.tile
    obstacle = tensor_core_obstacle(product, device, problem.numerics) or tile_obstacle(tile, product, device)
    if obstacle:
        return NotApplicable(obstacle)
    func = widened(workload.func)
    sch = Schedule(func)
    try:
        return _schedule(sch, problem, product, knobs, func.same_as(workload.func))
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _schedule(
    sch: Schedule, problem: Problem[CUDAModel], product: Gemm, knobs: MmaKnobs, is_trace: bool
) -> Kernel | NotApplicable:
    workload, device, tile, packs = problem.workload, problem.device, knobs.tile, knobs.pack
    reason = merge_epilogue(sch)
    if reason:
        return NotApplicable(reason)
    a_inner, b_inner = inner_of(product, "a"), "k" if packs else inner_of(product, "b")
    blocks = gemm_form(sch, (tile.bm, tile.bn, tile.bk * tile.split), a_inner, b_inner)
    if isinstance(blocks, NotApplicable):
        return blocks
    if product.n % tile.bn and any(arg.is_output and arg.shape[-1:] != (product.n,) for arg in workload.args):
        # a row has the columns of several products; stores through registers know only where the row ends
        product = replace(product, out_vector=min(product.out_vector, COMPUTED))
    dtypes = product.a.dtype, product.b.dtype
    acc = "int32" if product.a.dtype in BYTES else "float32"
    is_split = splits_operands(product, problem.numerics)
    fragments = mma_intrinsics(dtypes, acc, a_inner, b_inner, is_split, multiplies_whole(device))
    reason = _product(sch, blocks, product, tile, fragments, (a_inner, b_inner), packs, copies_async(device))
    if reason:
        return NotApplicable(reason)
    if not packs:
        return Kernel(sch.mod["main"], (), sch.trace if is_trace else None)
    n, k = (-(-extent // step) * step for extent, step in ((product.n, tile.bn), (product.k, tile.bk * tile.split)))
    is_nk = workload.args[product.b.param].shape == (product.n, product.k) and _is_nk(workload)
    packing = Packing(((1, n), (k,)), (0, 1, 2)) if is_nk else Packing(((k,), (1, n)), (1, 2, 0))
    return Kernel(split_prepack(sch.mod["main"], product.b.param), ((product.b.param, packing),), None)


def _is_nk(workload: Workload) -> bool:
    """Whether B's first dim is n: of a square B, the shape does not say."""
    found = anchor_of(Schedule(workload.func))
    return not isinstance(found, NotApplicable) and found[1].b.axes[0] == found[1].n.index


# long: one schedule; its loops and blocks are named from the first step to the last
def _product(
    sch: Schedule, blocks: GemmBlocks, product: Gemm, tile: MmaTile, fragments: MmaIntrinsics,
    inner: tuple[str, str], packs: bool, is_async: bool,
) -> str:  # fmt: skip
    block = blocks.product
    batch, i, j, k = sch.get_loops(block)
    if tile.split > 1:
        part, k = sch.split(k, [tile.split, None])
        block = sch.rfactor(part, 0)
        batch, i, j, part, k = sch.get_loops(block)
        sch.reorder(batch, part, i, j, k)
        batch = sch.fuse(batch, part)
    i, ii = sch.split(i, [None, TILE])
    j, ji = sch.split(j, [None, TILE])
    k, ki = sch.split(k, [None, fragments.k])
    sch.reorder(i, j, k, ii, ji, ki)
    tile_block = sch.blockize(ii)
    i0, i1, i2 = sch.split(i, [None, tile.wm, tile.bm // TILE // tile.wm])
    j0, j1, j2 = sch.split(j, [None, tile.wn, tile.bn // TILE // tile.wn])
    k0, k1 = sch.split(k, [None, tile.bk // fragments.k])
    group = _divisor(int(sch.get(i0).extent), tile.raster)
    i00, i01 = sch.split(i0, [None, group])
    sch.reorder(i00, j0, i01, i1, j1, k0, k1, i2, j2)
    sch.bind(sch.fuse(i00, j0, i01), "blockIdx.x")
    if int(sch.get(batch).extent) > 1:
        sch.bind(batch, "blockIdx.z")
    sch.bind(i1, "threadIdx.y")
    sch.bind(j1, "threadIdx.z")

    loads = []
    for index, (copy, name, axis) in enumerate(((blocks.a, "a", inner[0]), (blocks.b, "b", inner[1]))):
        vector = tile.vector(product, name)
        if packs and name == "b":
            vector = 16 * 8 // dtype_bits(product.b.dtype)
        row = tile.bk if axis == "k" else (tile.bm if name == "a" else tile.bn)
        dtype = product.a.dtype if name == "a" else product.b.dtype
        shared = _to_shared(sch, tile_block, index, k0, tile, vector, row, dtype)
        if packs and name == "b":
            reason = _only_packs(sch, shared, copy)
        else:
            reason = inline_producers(sch, shared)
            if axis == "k":
                sch.annotate(shared, FREE_ROWS_ATTR if name == "a" else FREE_COLUMNS_ATTR, 1)
        if reason:
            return reason
        warp = sch.cache_read(tile_block, index, "warp")
        sch.compute_at(warp, k1, preserve_unit_loops=True)
        loads.append(warp)
    shared_sums = sch.cache_write(tile_block, 0, "shared.dyn")
    sums = sch.cache_write(tile_block, 0, "warp")
    sch.reverse_compute_at(sums, j1, preserve_unit_loops=True)
    sch.reverse_compute_at(shared_sums, j1, preserve_unit_loops=True)

    shapes = [(TILE, fragments.k) if axis == "k" else (fragments.k, TILE) for axis in inner]
    tiled = [_tiled(sch, load, *shape) for load, shape in zip(loads, shapes, strict=True)]
    stored = _tiled(sch, sums, TILE, TILE)
    maps = (fragments.a_fragment, fragments.b_fragment)
    for load, shape, fragment in zip(loads, shapes, maps, strict=True):
        sch.transform_layout(load, ("write", 0), _fragment_map(shape, fragment))
    sch.transform_layout(sums, ("read", 0), _fragment_map((TILE, TILE), fragments.c_fragment))
    init = sch.decompose_reduction(tile_block, k0)
    for loop, name in zip(tiled, (fragments.load_a, fragments.load_b), strict=True):
        sch.tensorize(sch.blockize(loop), name)
    (init_inner,) = sch.get_child_blocks(init)
    (inner_block,) = sch.get_child_blocks(tile_block)
    sch.tensorize(sch.get_loops(init_inner)[-2], fragments.fill)
    sch.tensorize(sch.get_loops(inner_block)[-3], fragments.compute)
    stored_block = sch.blockize(stored)
    sch.storage_align(stored_block, 0, -2, 32, 8)  # rows of a fragment in different banks
    sch.tensorize(stored_block, fragments.store)

    if tile.split > 1:
        store_rows(sch, shared_sums, 4)
        reason = sum_parts(sch, blocks.product, blocks.c, product.out_vector)
    else:
        reason = inline_epilogue(sch, shared_sums)
        if not reason:
            store_rows(sch, shared_sums, product.out_vector)
            if inner[0] == "k":
                sch.annotate(shared_sums, FREE_ROWS_ATTR, 1)
    if tile.stages > 1:
        sch.annotate(k0, "software_pipeline_stage", [0, 0, tile.stages - 1])
        sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
        if is_async:
            sch.annotate(k0, "software_pipeline_async_stages", [0])
    sch.unroll(k1)
    return reason


def _to_shared(sch: Schedule, block: Any, index: int, at: Any, tile: MmaTile, vector: int, row: int, dtype: str) -> Any:
    shared = sch.cache_read(block, index, "shared.dyn")
    sch.compute_at(shared, at, preserve_unit_loops=True)
    fused = sch.fuse(*sch.get_loops(shared)[-2:])
    _, z, y, x, v = sch.split(fused, [None, tile.wn, tile.wm, LANES, vector])
    sch.bind(x, "threadIdx.x")
    sch.bind(y, "threadIdx.y")
    sch.bind(z, "threadIdx.z")
    sch.vectorize(v)
    if can_swizzle(row, dtype):
        sch.annotate(shared, SWIZZLE_ATTR, True)
    else:
        chunk = 16 * 8 // dtype_bits(dtype)
        sch.storage_align(shared, 0, axis=-2, factor=2 * chunk, offset=chunk)
    return shared


def _only_packs(sch: Schedule, shared: Any, copy: Any) -> str:
    """Leave the copies between the constant and `shared` at the root: `split_prepack` takes them out."""
    producers = sch.get_producers(shared)
    if len(producers) != 1:
        return "B has no one producer to pack"
    return ""


def _tiled(sch: Schedule, block: Any, rows: int, columns: int) -> Any:
    """Split the two innermost loops by a fragment's shape; the outer of the two loops inside."""
    x, y = sch.get_loops(block)[-2:]
    x0, x1 = sch.split(x, [None, rows])
    y0, y1 = sch.split(y, [None, columns])
    sch.reorder(x0, y0, x1, y1)
    return x1


def _fragment_map(shape: tuple[int, int], fragment: Any) -> Any:
    """[..., row, column] -> [..., tile row, tile column, lane, element]."""

    def index_map(*index: Any) -> list[Any]:
        *outer, row, column = index
        rows, columns = shape
        lane, element = fragment(row % rows, column % columns)
        return [*outer, row // rows, column // columns, lane, element]

    return index_map


def _divisor(extent: int, most: int) -> int:
    return next(d for d in range(min(extent, most), 0, -1) if extent % d == 0)
