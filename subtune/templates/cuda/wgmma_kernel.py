"""The warp-specialised kernel for Hopper: one warpgroup copies (TMA), one to three multiply (wgmma), a ring between.

    copying:      for tile of this block, for step of k:  wait empty[stage];  box of A, box of B -> stage;  full[stage]
    multiplying:  for tile of this block:  for step of k:  wait full[stage];  acc += A * B;  free the stage before
                                           store the tile (`wgmma_store`)

The grid is persistent: a block walks tiles `block, block + grid, ...`, and copies the next tile's first stages while
the last one is stored. Consumers share a tile (`m64` rows each), or with `alternate` take tiles in turn: one stores
while the other multiplies. A GEMM and a convolution differ in their tensor maps and in the rows of a tile only.
Sources: CUTLASS 3 (warp-specialised persistent kernels); PTX ISA 8, wgmma and cp.async.bulk.tensor.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.gemm_view import GemmView
from subtune.templates.cuda.tma import TensorMap, copy_instruction
from subtune.templates.cuda.wgmma_store import Store, bound, unravel
from subtune.wgmma_tiling import ROW_BYTES, Tiling
from subtune.workload import dtype_bits

_NAMES = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", "float32": "tf32"}
_FLOAT8 = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def instruction(dtype: str, columns: int) -> str:
    """The multiplication of 64 rows, 32 bytes of k, and `columns`."""
    name = _NAMES.get(dtype) or _FLOAT8[dtype]
    k = 256 // dtype_bits(dtype)
    total = "s32" if dtype in ("int8", "uint8") else "f32"
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{k}.{total}.{name}.{name}"


def wgmma_func(
    params: tuple[Any, ...], a: Any, b: Any, maps: tuple[TensorMap, TensorMap], view: GemmView, tiling: Tiling,
    store: Store, sms: int,
) -> Any:  # fmt: skip
    """The PrimFunc with `params`, two of which are the operands `a` and `b`."""
    a_map, b_map = maps
    t = tiling
    size = dtype_bits(a_map.dtype) // 8
    bk = ROW_BYTES // size
    a_elements, b_elements = t.m * bk, t.columns * bk
    a_bytes, b_bytes = a_elements * size, b_elements * size
    register = "uint32" if a_map.dtype in ("int8", "uint8") else "float32"
    row_tiles = [ceil(view.groups[g].extent / rows) for g, rows in zip(view.rows, t.rows, strict=True)]
    m_tiles, n_tiles = prod(row_tiles), ceil(view.extent(view.n) / t.columns)
    tiles = view.extent(*view.batch) * m_tiles * n_tiles
    grid = min(tiles, sms * t.blocks_per_sm)
    chunks = ceil(view.extent(view.inner) / bk)
    steps = view.extent(*view.steps) * chunks
    m64, acc = t.m_consumer // 64, t.columns // 2
    multiply = instruction(a_map.dtype, t.columns)
    is_16 = size == 2
    # descriptors count in 16 bytes; k16 is two of them along k, 16 rows of 128 bytes across
    a_step, b_step = (2 if m.is_along_k else 16 * ROW_BYTES // 16 for m in (a_map, b_map))
    a_leading, b_leading = (1 if m.is_along_k else bk * ROW_BYTES // 16 for m in (a_map, b_map))
    a_boxes, b_boxes = (1 if m.is_along_k else width // bk for m, width in ((a_map, t.m), (b_map, t.columns)))
    copy_a, copy_b = copy_instruction(a_map.rank), copy_instruction(b_map.rank)
    less, more = t.setmaxnreg or (0, 0)
    free_by = 1 if t.alternate else t.consumers
    next_tile = grid * t.consumers if t.alternate else grid

    def declare() -> None:
        for param in params:
            T.arg(param.name, param)

    def where(tile: Any) -> dict[int, Any]:
        """Each group's first index in a tile: batch, rows, n."""
        per_batch = m_tiles * n_tiles
        within = tile % per_batch if view.batch else tile
        band = within // (t.raster * n_tiles)
        height = tirx.min(m_tiles - band * t.raster, t.raster) if m_tiles % t.raster else t.raster
        rest = within - band * (t.raster * n_tiles)
        m = band * t.raster + rest % height if t.raster > 1 else within // n_tiles
        n = rest // height if t.raster > 1 else within % n_tiles
        at = {view.n: n * t.columns}
        for g, count, rows in reversed(list(zip(view.rows, row_tiles, t.rows, strict=True))):
            at[g] = (m % count if g != view.rows[0] else m) * rows
            m = m // count
        return at | unravel(view, tile // per_batch, view.batch)

    def of_step(step: Any) -> dict[int, Any]:
        return unravel(view, step // chunks, view.steps) | {view.inner: step % chunks * bk}

    def accumulators(m: Any, registers: Any) -> list[Any]:
        return [registers[m * acc + i] for i in range(acc)]

    def wide(index: Any, factor: int) -> Any:
        return T.uint64(factor) * T.cast(index, "uint64")

    def flags() -> tuple[Any, ...]:
        """What follows `accumulate`: signs of A and B, and whether they are across k (16 bits only)."""
        if register == "uint32":
            return ()
        across = (int(not a_map.is_along_k), int(not b_map.is_along_k)) if is_16 else ()
        return (1, 1, *across)

    # fmt: off
    @T.prim_func(check_well_formed=False)
    def main() -> None:
        declare()
        map_a: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_a, a_map.dtype, a_map.rank, a.data, *a_map.arguments)
        map_b: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_b, b_map.dtype, b_map.rank, b.data, *b_map.arguments)
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": t.blocks_per_sm})
        block = T.cta_id([grid])
        tid = T.thread_id([t.threads])
        pool = T.SMEMPool()
        shared_a = pool.alloc((t.stages * a_elements,), a_map.dtype, align=1024)
        shared_b = pool.alloc((t.stages * b_elements,), b_map.dtype, align=1024)
        staged = pool.alloc((store.shared_elements(),), store.dtype, align=128)
        full = pool.alloc((t.stages,), "uint64", align=8)
        empty = pool.alloc((t.stages,), "uint64", align=8)
        turn = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        group: T.let[T.int32] = T.tvm_warp_shuffle(0xFFFFFFFF, tid // 128, 0, 32, 32)
        if tid == 0:
            for i in T.unroll(t.stages):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([i]), T.uint32(free_by))
            for i in T.unroll(2):
                T.ptx.mbarrier.init.shared.b64(turn.ptr_to([i]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx.fence.proxy.async_.shared__cta()
        T.cuda.cta_sync()
        stage: T.int32 = 0
        phase: T.int32 = 0
        tile: T.int32 = block
        if group == 0:
            if less > 0:
                T.ptx["setmaxnreg.dec.sync.aligned.u32"](less)
            if tid == 0:
                while tile < tiles:
                    corner = T.meta_var(bound(where(tile)))
                    for step in T.serial(steps):
                        T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                        T.ptx.mbarrier.arrive.expect_tx.shared.b64(full.ptr_to([stage]), T.uint32(a_bytes + b_bytes))
                        for box in T.unroll(a_boxes):
                            T.ptx[copy_a](
                                shared_a.ptr_to([stage * a_elements + box * (bk * bk)]), T.address_of(map_a),
                                *a_map.coordinates(moved(corner | of_step(step), view.rows[-1], box * bk, a_boxes)),
                                full.ptr_to([stage]))
                        for box in T.unroll(b_boxes):
                            T.ptx[copy_b](
                                shared_b.ptr_to([stage * b_elements + box * (bk * bk)]), T.address_of(map_b),
                                *b_map.coordinates(moved(corner | of_step(step), view.n, box * bk, b_boxes)),
                                full.ptr_to([stage]))
                        stage = stage + 1
                        if stage == t.stages:
                            stage = 0
                            phase = phase ^ 1
                    tile = tile + grid
        else:
            if less > 0:
                T.ptx["setmaxnreg.inc.sync.aligned.u32"](more)
            consumer: T.let[T.int32] = group - 1
            first: T.let[T.int32] = 0 if t.alternate else consumer * t.m_consumer
            lane: T.let[T.int32] = tid % 128
            sums = T.alloc_local((m64 * acc,), register)
            desc_a: T.uint64 = T.uint64(0)
            desc_b: T.uint64 = T.uint64(0)
            T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_a), shared_a.ptr_to([first * bk]), a_leading, 64, 3)
            T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_b), shared_b.ptr_to([0]), b_leading, 64, 3)
            if t.alternate:
                tile = block + consumer * grid
                stage = consumer * steps % t.stages
                phase = consumer * steps // t.stages % 2
            odd: T.int32 = 0
            while tile < tiles:
                before: T.int32 = 0
                if t.alternate:  # a phase has one bit: whoever waits must not be two rounds of the ring ahead
                    T.cuda.mbarrier_wait(turn.ptr_to([consumer]), (odd + 1 - consumer) % 2)
                    odd = 1 - odd
                for step in T.serial(steps):
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    T.ptx.wgmma.fence.sync.aligned()
                    for k in T.unroll(4):
                        for m in T.unroll(m64):
                            T.ptx[multiply](
                                *accumulators(m, sums),
                                desc_a + wide(stage, a_bytes // 16) + wide(k, a_step) + wide(m, 64 * ROW_BYTES // 16),
                                desc_b + wide(stage, b_bytes // 16) + wide(k, b_step),
                                step + k > 0, *flags())
                    T.ptx.wgmma.commit_group.sync.aligned()
                    if step > 0:
                        T.ptx.wgmma.wait_group.sync.aligned(1)
                        if lane == 0:
                            T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([before]), T.uint32(1))
                    before = stage
                    stage = stage + 1
                    if stage == t.stages:
                        stage = 0
                        phase = phase ^ 1
                if t.alternate:  # noqa: SIM102 - the one is decided here, the other on the device
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(turn.ptr_to([1 - consumer]), T.uint32(1))
                T.ptx.wgmma.wait_group.sync.aligned(0)
                if lane == 0:
                    T.ptx.mbarrier.arrive.shared.b64(empty.ptr_to([before]), T.uint32(1))
                store.emit(sums, staged, bound(where(tile)), first, consumer, lane, m64)
                if t.alternate:
                    skipped: T.let[T.int32] = stage + (t.consumers - 1) * steps
                    phase = (phase + skipped // t.stages) % 2
                    stage = skipped % t.stages
                tile = tile + next_tile
    # fmt: on
    return main


def moved(at: dict[int, Any], group: int, by: Any, boxes: int) -> dict[int, Any]:
    return at if boxes == 1 else {**at, group: at[group] + by}
