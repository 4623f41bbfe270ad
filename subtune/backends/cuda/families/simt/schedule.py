"""Matrix products on CUDA cores, any dtype: register tiles fed from double-buffered shared memory.

    for block (m tile, n tile; rasterised):  for k tile:  A', B' -> shared memory, turned to [k][m] and [k][n]
      for k:  8 (4 + 4) elements of A and of B to registers, two 16-byte loads each;  8 x 8 multiply-adds

A thread's tile is contiguous (registers are indexed by constants then), the lanes of a warp 4 x 8. Shared memory holds
the tile's quarters apart, [k][quarter][lane][4], so that the lanes' 16-byte loads lie side by side: no conflicts.
Sources: NVIDIA, "CUTLASS: fast linear algebra in CUDA C++" (warp tiles); measured in the project's recipes.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.free_rows import FREE_COLUMNS_ATTR, FREE_ROWS_ATTR
from subtune.backends.cuda.model.core_tiles import VECTOR, WARP_COLUMNS, WARP_ROWS, SimtTile, simt_tile_obstacle
from subtune.backends.cuda.source.epilogue import inline_epilogue, merge_epilogue
from subtune.backends.cuda.source.gemm_form import gemm_form, widened
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm import Gemm, gemm, inline_producers
from subtune.tir.tile import extent_of


def schedule(problem: Problem[CUDAModel], tile: SimtTile) -> Kernel | NotApplicable:
    workload = problem.workload
    product = gemm(workload)
    if isinstance(product, NotApplicable):
        return product
    obstacle = simt_tile_obstacle(tile, product, problem.device)
    if obstacle:
        return NotApplicable(obstacle)
    func = widened(workload.func)
    sch = Schedule(func)
    try:
        reason = _schedule(sch, product, tile)
    except ScheduleError as e:
        reason = str(e).strip().splitlines()[-1]
    if reason:
        return NotApplicable(reason)
    return Kernel(sch.mod["main"], (), sch.trace if func.same_as(workload.func) else None)


# long: one schedule; its loops and blocks are named from the first step to the last
def _schedule(sch: Schedule, product: Gemm, tile: SimtTile) -> str:
    reason = merge_epilogue(sch)
    if reason:
        return reason
    blocks = gemm_form(sch, (tile.bm, tile.bn, tile.bk))
    if isinstance(blocks, NotApplicable):
        return blocks.reason
    block = blocks.product
    batch, i, j, k = sch.get_loops(block)
    rows, columns = tile.warps
    i0, iw, il, it = sch.split(i, [None, rows, WARP_ROWS, tile.tm])
    j0, jw, jl, jt = sch.split(j, [None, columns, WARP_COLUMNS, tile.tn])
    k0, k1 = sch.split(k, [None, tile.bk])
    group = next(d for d in range(min(extent_of(sch, i0), tile.raster), 0, -1) if extent_of(sch, i0) % d == 0)
    i00, i01 = sch.split(i0, [None, group])
    sch.reorder(batch, i00, j0, i01, iw, jw, il, jl, k0, k1, it, jt)
    sch.bind(sch.fuse(i00, j0, i01), "blockIdx.x")
    if extent_of(sch, batch) > 1:
        sch.bind(batch, "blockIdx.z")
    sch.bind(sch.fuse(iw, jw), "threadIdx.y")
    thread = sch.fuse(il, jl)
    sch.bind(thread, "threadIdx.x")

    sums = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(sums, thread, preserve_unit_loops=True)
    for index, (name, extent, width) in enumerate((("a", tile.bm, tile.tm), ("b", tile.bn, tile.tn))):
        shared = sch.cache_read(block, index, "shared.dyn")
        fragment = sch.cache_read(block, index, "local")
        sch.compute_at(fragment, k1, preserve_unit_loops=True)
        sch.compute_at(shared, k0, preserve_unit_loops=True)
        reason = inline_producers(sch, shared)
        if reason:
            return reason
        side = product.a if name == "a" else product.b
        _copy_tile(sch, shared, tile, tile.vector(product, name), side.inner == "k")
        if side.inner == "k":
            sch.annotate(shared, FREE_ROWS_ATTR if name == "a" else FREE_COLUMNS_ATTR, 1)
        sch.transform_layout(shared, ("write", 0), _quarters(extent, width))
        # banks of the stores: a column of k groups turned (0-3 | lanes 4 | quarters 8 | 4 rows of k 16), or a row of
        # vectors (lanes 0-15 | quarters 16)
        sch.storage_align(shared, 0, axis=-3, factor=32, offset=8 if side.inner == "k" else 16)
        if side.inner == "k":
            sch.storage_align(shared, 0, axis=-5, factor=8, offset=4)
        _, vector = sch.split(sch.fuse(*sch.get_loops(fragment)[-2:]), [None, VECTOR])
        sch.vectorize(vector)
        if tile.copy == "registers":
            sch.annotate(shared, "tirx.manifest_shared_memory_local_stage", 1)

    reason = inline_epilogue(sch, sums)
    if reason:
        return reason
    width = min(product.out_vector, 16 // (dtype_bits(str(sch.get(sums).writes[0].source.dtype)) // 8), VECTOR)
    _, vector = sch.split(sch.get_loops(sums)[-1], [None, width])
    sch.vectorize(vector)
    init = sch.decompose_reduction(block, k0)
    for loop in (k1, it, jt, *sch.get_loops(init)[-2:], *sch.get_loops(sums)[-3:-1]):
        sch.unroll(loop)
    # by the compiler: written out, thousands of statements took it 8 s instead of 1.5
    sch.annotate(k1, "pragma_unroll_explicit", 0)
    if tile.copy == "registers":
        # load to registers, compute with the tile before, store: A's and B's loads, the product, A's and B's stores
        sch.annotate(k0, "software_pipeline_stage", [0, 0, 0, 0, 1])
        sch.annotate(k0, "software_pipeline_order", [0, 3, 1, 4, 2])
    elif tile.stages > 1:
        sch.annotate(k0, "software_pipeline_stage", [0, 0, tile.stages - 1])
        sch.annotate(k0, "software_pipeline_order", [0, 1, 2])
        sch.annotate(k0, "software_pipeline_async_stages", [0])
    return ""


def _copy_tile(sch: Schedule, shared: Any, tile: SimtTile, vector: int, along_k: bool) -> None:
    """All threads copy the tile; `shared` has the loops [row, k]."""
    row, k = sch.get_loops(shared)[-2:]
    if not along_k:
        sch.reorder(k, row)
        row, k = k, row
    rows, columns = tile.warps
    fused = sch.fuse(row, k)
    _, y, x, v = sch.split(fused, [None, rows * columns, WARP_ROWS * WARP_COLUMNS, vector])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    sch.vectorize(v)


def _quarters(extent: int, width: int) -> Any:
    """[s, row, k] -> [s, k, tile, quarter, lane, 4]: four elements of each lane's `width` side by side."""

    def index_map(s: Any, row: Any, k: Any) -> list[Any]:
        return [s, k, row // extent, (row % width) // VECTOR, (row % extent) // width, row % VECTOR]

    return index_map
