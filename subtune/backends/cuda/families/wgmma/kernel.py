"""The warp-specialised kernel for Hopper: one warpgroup copies (TMA), one to three multiply (wgmma), a ring between.

    copying:      for tile of this block, for step of k:  wait empty[stage];  box of A, box of B -> stage;  full[stage]
    multiplying:  for tile of this block:  for step of k:  wait full[stage];  acc += A * B;  free the stage before
                                           store the tile (`store`)

The grid is persistent: a block walks tiles `block, block + grid, ...`, and copies the next tile's first stages while
the last one is stored. Consumers share a tile (`m64` rows each), or with `alternate` take tiles in turn: one stores
while the other multiplies. With `taps`, a stage has the weights of several, and the rows of pixels that all of them
read; a `resident` B is copied with the first tile. In a `cluster`, blocks have tiles one below the other and each
copies a part of B for all of them; with `split`, blocks share a tile and each sums a part of k (`cluster`). A GEMM and
a convolution differ in their tensor maps and in the rows of a tile only; a product that is added to another one is more
steps of k, copied by maps of its own (`copies`).
Sources: CUTLASS 3 (warp-specialised persistent kernels); PTX ISA 8, wgmma and cp.async.bulk.tensor.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.building.parsed_once import parsed_once
from subtune.backends.cuda.families.wgmma.cluster import (
    arrive_at_cluster,
    arrive_everywhere,
    part_of_sums,
    wait_for_cluster,
)
from subtune.backends.cuda.families.wgmma.copies import Copies
from subtune.backends.cuda.families.wgmma.feed import ROLLED, Feed
from subtune.backends.cuda.families.wgmma.row_values import RowValues
from subtune.backends.cuda.families.wgmma.store import Store, wide_dtype
from subtune.backends.cuda.families.wgmma.tiling import SWIZZLES
from subtune.core.numerics import BYTES
from subtune.core.workload import dtype_bits

_NAMES = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "uint8": "u8", "float32": "tf32"}
_ALL, _READY = 4, 5  # barriers of all consumers, and of the whole block; 1 to 3 are those of each consumer
_FLOAT8 = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def instruction(a: str, b: str, columns: int) -> str:
    """The multiplication of 64 rows, 32 bytes of k, and `columns`, of elements of the types `a` and `b`."""
    names = ".".join(_NAMES.get(dtype) or _FLOAT8[dtype] for dtype in (a, b))
    total = "s32" if a in BYTES else "f32"
    return f"wgmma.mma_async.sync.aligned.m64n{columns}k{256 // dtype_bits(a)}.{total}.{names}"


# long: one kernel in TVMScript, whose roles share barriers, buffers and indices
@parsed_once()
def wgmma_func(params: tuple[Any, ...], copies: tuple[Copies, ...], store: Store, rows: RowValues | None = None) -> Any:
    """The PrimFunc with `params`; `copies` has the product, and one that is added to it; `rows` computes numbers of
    its rows.
    """
    product = copies[0]
    (a_map, b_map), walk = product.maps, product.walk
    t = walk.tiling
    size = dtype_bits(a_map.dtype) // 8
    bk, eight_rows, swizzle = t.row_bytes // size, t.row_bytes * 8 // 16, SWIZZLES[t.row_bytes]
    a_elements, b_tap = t.copied_rows * bk, t.columns * bk
    b_elements = t.taps * b_tap
    a_bytes, b_bytes = a_elements * size, product.column_bytes
    register = "uint32" if a_map.dtype in BYTES else "float32"
    blocks, tiles, clusters = walk.blocks, walk.tiles, walk.clusters
    m64, width = t.multiplied
    acc = width // 2
    multiply = instruction(a_map.dtype, b_map.dtype, width)
    is_16 = size == 2
    # descriptors count in 16 bytes; k16 is two of them along k, 16 rows of 128 bytes across
    a_step, b_step = (2 if m.is_along_k else 16 * t.row_bytes // 16 for m in (a_map, b_map))
    a_leading, b_leading = (1 if m.is_along_k else bk * t.row_bytes // 16 for m in (a_map, b_map))
    less, more = t.setmaxnreg or (0, 0)
    free_by = 1 if t.alternate else t.consumers
    is_single = walk.has_one_tile
    next_tile = clusters * t.consumers if t.alternate else clusters
    sums_elements, has_columns = t.m * t.columns, bool(store.fetched)
    is_apart = not (t.alternate or t.swapped or t.boxes > 1)  # rows of a consumer begin where those of another end

    def declare() -> None:
        for param in params:
            T.arg(param.name, param)

    def prefetch(maps: Any) -> None:
        for handle in (handle for of_product in maps for handle in of_product):
            T.evaluate(T.ptx.prefetch.tensormap(T.address_of(handle)))

    def release(slot: Any, lane: Any) -> None:
        if t.cluster > 1:
            arrive_everywhere(slot, t.cluster, lane)
        else:
            with T.If(lane == 0), T.Then():
                T.evaluate(T.ptx.mbarrier.arrive.shared.b64(slot, T.uint32(1)))

    def accumulators(m: Any, registers: Any) -> list[Any]:
        return [registers[m * acc + i] for i in range(acc)]

    def corner_of(tile: Any, rank: Any, consumer: Any) -> dict[int, Any]:
        """Of what is loaded ahead: the last tile's again where there is no more."""
        return walk.stored_at(walk.where(tirx.min(tile, tiles - 1), rank, consumer), rank, consumer)

    def wide(index: Any, factor: int) -> Any:
        return T.uint64(factor) * T.cast(index, "uint64")

    def operands(a: Any, b: Any, first: Any, m: Any) -> tuple[Any, Any]:
        """Of a multiplication: descriptors of its 64 rows, the consumer's `m`th, and of its columns."""
        if t.swapped:
            return b + wide(m, 4 * t.row_bytes), a
        if t.taps > 1:
            return a + wide(t.copied_row(first + m * 64), t.row_bytes // 16), b
        return a + wide(m, 4 * t.row_bytes), b

    def tap_of(a: Any, b: Any, tap: Any) -> tuple[Any, Any]:
        """The descriptors of a stage as those of a tap."""
        if t.taps == 1:
            return a, b
        return a + wide(tap, t.rows[-1] * t.row_bytes // 16), b + wide(tap, b_tap * size // 16)

    def flags() -> tuple[Any, ...]:
        """What follows `accumulate`: signs of both operands, and whether they are across k (16 bits only)."""
        if register == "uint32":
            return ()
        across = (int(not a_map.is_along_k), int(not b_map.is_along_k)) if is_16 else ()
        return (1, 1, *(across[::-1] if t.swapped else across))

    # fmt: off
    @T.prim_func(check_well_formed=False)
    def main() -> None:
        declare()
        maps = T.meta_var([one.declare(f"_{i}" if i else "") for i, one in enumerate(copies)])
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": t.blocks_per_sm})
        rank = T.meta_var(T.cta_id_in_cluster([blocks]) if blocks > 1 else 0)
        place = T.cta_id([walk.grid])
        block: T.let[T.int32] = place // blocks
        tid = T.thread_id([t.threads])
        pool = T.SMEMPool()
        shared_a = pool.alloc((t.stages * a_elements,), a_map.dtype, align=1024)
        shared_b = pool.alloc(((t.resident or t.stages) * b_elements,), b_map.dtype, align=1024)
        ring = T.meta_var(T.decl_buffer((sums_elements,), register, data=pool.ptr, scope="shared.dyn"))
        staged = pool.alloc((store.shared_elements(),), store.dtype, align=128)
        columns = T.meta_var([
            pool.alloc((t.fetched_elements(),), wide_dtype(load), align=16) for load in store.fetched])
        full = pool.alloc((t.stages,), "uint64", align=8)
        empty = pool.alloc((t.stages,), "uint64", align=8)
        turn = pool.alloc((2,), "uint64", align=8)
        numbers = T.meta_var(rows.declare(pool) if rows is not None else None)
        pool.commit()
        group: T.let[T.int32] = T.tvm_warp_shuffle(0xFFFFFFFF, tid // 128, 0, 32, 32)
        if tid == 0:
            prefetch(maps)
            for i in T.unroll(t.stages):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(empty.ptr_to([i]), T.uint32(free_by * t.cluster))
            for i in T.unroll(2):
                T.ptx.mbarrier.init.shared.b64(turn.ptr_to([i]), T.uint32(1))
            if rows is not None:
                rows.prepare(numbers)
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx.fence.proxy.async_.shared__cta()
        if blocks > 1:
            arrive_at_cluster()
            wait_for_cluster()
        elif (group == 0 if rows is None else tid < 32):  # who copies knows the barriers, having made them
            T.ptx.bar.arrive(T.uint32(_READY), T.uint32(t.threads))
        else:
            T.ptx.bar.sync(T.uint32(_READY), T.uint32(t.threads))
        feed = T.meta_var(Feed(copies, maps, (shared_a, shared_b), full, empty))
        if tid == 0:
            feed.ahead(block, rank)
        T.ptx.griddepcontrol.wait()
        stage: T.int32 = 0
        phase: T.int32 = 0
        tile: T.int32 = block
        if group == 0:
            if less > 0:
                T.ptx["setmaxnreg.dec.sync.aligned.u32"](less)
            if tid == 0:
                while tile < tiles:
                    corners = T.meta_var([walk.where(tile, rank, box) for box in range(t.boxes)])
                    for local in T.serial(walk.steps_of(rank), annotations=ROLLED):
                        feed.step(tile, block, rank, local, (stage, phase ^ 1), corners)
                        stage = stage + 1
                        if stage == t.stages:
                            stage = 0
                            phase = phase ^ 1
                    tile = tile + clusters
                if t.cluster > 1:  # others free these slots from afar: until all have, this block must be there
                    for _last in T.serial(t.stages):
                        T.cuda.mbarrier_wait(empty.ptr_to([stage]), phase ^ 1)
                        stage = stage + 1
                        if stage == t.stages:
                            stage = 0
                            phase = phase ^ 1
            if rows is not None:
                rows.compute(numbers, block, rank, tid)
            if t.split > 1:
                arrive_at_cluster()
                wait_for_cluster()
                arrive_at_cluster()
        else:
            if less > 0:
                T.ptx["setmaxnreg.inc.sync.aligned.u32"](more)
            consumer: T.let[T.int32] = group - 1
            first: T.let[T.int32] = 0 if t.alternate or t.swapped else consumer * t.m_consumer
            first_column = T.meta_var(consumer * t.stored_columns if t.swapped and not t.alternate else 0)
            lane: T.let[T.int32] = tid % 128
            sums = T.alloc_local((m64 * acc,), register)
            summed = T.meta_var(T.alloc_local((m64 * acc,), register) if t.promote else sums)
            desc_a: T.uint64 = T.uint64(0)
            desc_b: T.uint64 = T.uint64(0)
            first_copied = T.meta_var(first * bk if t.taps == 1 else 0)
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(desc_a), shared_a.ptr_to([first_copied]), a_leading, eight_rows, swizzle)
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(desc_b), shared_b.ptr_to([first_column * bk]), b_leading, eight_rows, swizzle)
            if t.alternate:
                tile = block + consumer * clusters
                stage = consumer * walk.steps % t.stages
                phase = consumer * walk.steps // t.stages % 2
            odd: T.int32 = 0
            if rows is not None:
                had: T.int32 = 0  # tiles of this consumer
            begin = T.meta_var(corner_of(tile, rank, consumer))
            fetched = T.meta_var(store.fetch(begin, lane))
            held = T.meta_var(store.load_ahead(begin, first if is_apart else 0, lane))
            while tile < tiles:
                before: T.int32 = 0
                at = T.meta_var(walk.stored_at(walk.where(tile, rank, consumer), rank, consumer))
                base = T.meta_var(T.Bind((consumer * 2 + odd) * t.stored_columns) if has_columns else 0)
                if has_columns and is_single:  # while the first step is on its way
                    store.share(fetched, columns, base, lane)
                    T.cuda.warpgroup_sync(consumer + 1)
                if t.promote:
                    for i in T.unroll(m64 * acc):
                        sums[i] = T.float32(0)
                if t.alternate:  # a phase has one bit: whoever waits must not be two rounds of the ring ahead
                    T.cuda.mbarrier_wait(turn.ptr_to([consumer]), (odd + 1 - consumer) % 2)
                for step in T.serial(walk.steps_of(rank), annotations=ROLLED):
                    T.cuda.mbarrier_wait(full.ptr_to([stage]), phase)
                    T.ptx.wgmma.fence.sync.aligned()
                    for tap in T.unroll(t.taps):
                        for k in T.unroll(t.row_bytes // 32):
                            for m in T.unroll(m64):
                                T.ptx[multiply](
                                    *accumulators(m, summed),
                                    *operands(*tap_of(desc_a + wide(stage, a_bytes // 16) + wide(k, a_step),
                                                      desc_b + wide(step if t.resident > 0 else stage, b_bytes // 16)
                                                      + wide(k, b_step), tap),
                                              first, m),
                                    k > 0 if t.promote else step + tap + k > 0, *flags())
                    T.ptx.wgmma.commit_group.sync.aligned()
                    if t.promote:
                        T.ptx.wgmma.wait_group.sync.aligned(0)
                        release(empty.ptr_to([stage]), lane)
                        for i in T.unroll(m64 * acc):
                            sums[i] = sums[i] + summed[i]
                    elif step > 0:
                        T.ptx.wgmma.wait_group.sync.aligned(1)
                        release(empty.ptr_to([before]), lane)
                    before = stage
                    stage = stage + 1
                    if stage == t.stages:
                        stage = 0
                        phase = phase ^ 1
                if t.alternate:  # noqa: SIM102 - the one is decided here, the other on the device
                    if lane == 0:
                        T.ptx.mbarrier.arrive.shared.b64(turn.ptr_to([1 - consumer]), T.uint32(1))
                T.ptx.wgmma.wait_group.sync.aligned(0)
                if t.split == 1:
                    if not t.promote:
                        release(empty.ptr_to([before]), lane)
                else:
                    T.ptx.bar.sync(T.uint32(_ALL), T.uint32(t.threads - 128))  # nobody reads the ring any more
                if has_columns and not is_single:
                    store.share(fetched, columns, base, lane)
                    T.cuda.warpgroup_sync(consumer + 1)
                totals = T.meta_var(
                    part_of_sums(sums, ring, m64, acc, t.split, rank, tid - 128, t.threads - 128) if t.split > 1
                    else sums)
                after = T.meta_var(None if is_single else corner_of(tile + next_tile, rank, consumer))
                if not is_single:
                    store.fetch_again(fetched, after, lane)
                own_store = T.meta_var(
                    store if rows is None else rows.bound(store, numbers, (had, consumer, first, at), lane))
                own_store.emit(totals, staged, at, first if is_apart else 0, consumer, lane, t.m_consumer, held,
                               columns, base, after)
                if rows is not None:
                    rows.free(numbers, had, consumer, lane)
                    had = had + 1
                odd = 1 - odd
                if t.alternate:
                    skipped: T.let[T.int32] = stage + (t.consumers - 1) * walk.steps
                    phase = (phase + skipped // t.stages) % 2
                    stage = skipped % t.stages
                # a loop that the compiler does not see end would have all that is loaded ahead converted before it
                tile = tiles if is_single else tile + next_tile
        if t.split > 1:
            wait_for_cluster()  # until then, others read this block's sums
    # fmt: on
    return main
