"""The kernel of a network's first convolution: patches of the input, fragments out of them, products, stores.

    for band of this block:    copy the next band's patch;  wait for this one's
                               for 64 pixels of this warpgroup:  fragments from the patch;  wgmma;  emit
                               finish

A band is some rows of pixels of one image. Its patch has a plane of them, or, where the image lies channels first, one
for every channel. What becomes of its sums is the `Sink`'s: they are stored, or pooled. The
copies are the hardware's own where rows of the input are multiples of 16 bytes, and then run while the band before is
computed; else all threads copy a patch and wait for one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.building.parsed_once import parsed_once
from subtune.backends.cuda.families.stem.shape import Stem
from subtune.backends.cuda.families.wgmma.kernel import instruction
from subtune.backends.cuda.families.wgmma.store import Store, wide_dtype
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES, Tiling
from subtune.backends.cuda.families.wgmma.tma import copy_instruction

_SWIZZLE_128B, _L2_PROMOTION_128B = 3, 2  # CUtensorMapSwizzle, CUtensorMapL2promotion


class Sink(Protocol):
    """What becomes of a band's sums.

    `patches`: buffers for patches. With two, the next one is copied while a band is computed; with one, when its
    products are done. An image has `bands`; from one to the next are `advance` rows of pixels, and the first begins
    `above` the image. `staging`: elements of shared memory, and their type.
    """

    @property
    def patches(self) -> int: ...

    @property
    def bands(self) -> int: ...

    @property
    def advance(self) -> int: ...

    @property
    def above(self) -> int: ...

    @property
    def staging(self) -> tuple[int, str]: ...

    @property
    def store(self) -> Store: ...

    def emit(
        self, sums: Any, staging: Any, band: tuple[Any, Any], first: Any, group: Any, lane: Any, of_columns: list[Any]
    ) -> None:
        """64 pixels of warpgroup `group` from `first` on; `band`: its image, and its first row.

        `of_columns`: what the store fetches for all columns.
        """

    def finish(self, staging: Any, band: tuple[Any, Any], tid: Any) -> None:
        """When all threads have emitted all of the band."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The convolution's own result goes to memory."""

    store: Store
    stem: Stem
    patches: int
    above: int = 0

    @property
    def bands(self) -> int:
        return self.stem.out_height // self.stem.rows

    @property
    def advance(self) -> int:
        return self.stem.rows

    @property
    def staging(self) -> tuple[int, str]:
        return self.store.shared_elements(), self.store.dtype

    def emit(
        self, sums: Any, staging: Any, band: tuple[Any, Any], first: Any, group: Any, lane: Any, of_columns: list[Any]
    ) -> None:
        view = self.store.view
        rows = [band[0]] * (len(view.rows) - 2) + [band[1], tirx.const(0, "int32")]
        corner = {view.n: tirx.const(0, "int32"), **dict(zip(view.rows, rows, strict=True))}
        self.store.emit(sums, staging, corner, first, group, lane, 64, shared=of_columns)

    def finish(self, staging: Any, band: tuple[Any, Any], tid: Any) -> None:
        return


# long: one kernel in TVMScript, whose roles share barriers, buffers and indices
@parsed_once()
def stem_func(
    params: tuple[Any, ...], a: Any, b: Any, stem: Stem, sizes: tuple[int, int], tiling: Tiling, sink: Sink
) -> Any:
    """The PrimFunc with `params`, of which `a` are the images and `b` the packed weights; `sizes`: images, blocks."""
    images, grid = sizes
    dtype, store = str(b.dtype), sink.store
    columns, bands, size = tiling.columns, sink.bands, 4 // stem.per_word
    piece = ROW_BYTES // size  # of k, that is copied at once
    tiles, slices = images * bands, int(b.shape[1]) // piece
    map_b_arguments = [int(b.shape[1]), columns, int(b.shape[1]) * size, piece, columns, 1, 1,
                       0, _SWIZZLE_128B, _L2_PROMOTION_128B, 0]  # fmt: skip
    row_bytes, is_copied = stem.width * 4, stem.is_copied
    left, above = (stem.before[1] + stem.shift) // 2, stem.before[0]
    map_a_arguments = [stem.width // 2, stem.height, images * stem.planes, row_bytes, stem.height * row_bytes,
                       stem.pitch // 2, stem.patch_rows, stem.planes, 1, 1, 1, 0, 0, _L2_PROMOTION_128B, 0]  # fmt: skip
    copy_a, copy_b, multiply = copy_instruction(3), copy_instruction(2), instruction(str(a.dtype), dtype, columns)
    threads = 128 * tiling.consumers
    words, patches = stem.patch_words, sink.patches
    vector = 1 + (stem.width + 1) % 2  # words of a row that a thread copies at once, where all do
    across = stem.pitch // vector
    rows_at_once = max(1, threads // across)
    m_tiles = -(-stem.rows * stem.out_width // (64 * tiling.consumers))
    sums_count = columns // 2
    register, flags = ("float32", (1, 1, 0)) if size == 2 else ("uint32", ())
    step = stem.stride * stem.channels // stem.per_word  # words from one pixel's window to the next one's

    def declare() -> None:
        for param in params:
            T.arg(param.name, param)

    def pixel(m: Any) -> Any:
        """First word of a pixel's window."""
        return stem.shift + m // stem.out_width * (stem.stride * stem.pitch) + m % stem.out_width * step

    def inside(r: Any, c: Any) -> Any:
        return tirx.all(r >= 0, r < stem.height, c >= 0, c < stem.width)

    def registers(local: Any, begin: Any, count: int) -> list[Any]:
        return [local[begin + i] for i in range(count)]

    def wide(index: Any, factor: int) -> Any:
        return T.uint64(factor) * T.cast(index, "uint64")

    def gather(pair: Any, patch: Any, windows: tuple[Any, Any]) -> None:
        """A thread's fragments: of two pixels, whose `windows` begin there."""
        for part in range(stem.steps * 2):
            word = stem.word_of(part * stem.at_once)
            for i, window in enumerate(windows):
                value = T.uint32(0) if word is None else patch[window + word]
                T.buffer_store(pair, value, [part * 2 + i])

    def first_row(tile: Any) -> Any:
        return tile % bands * sink.advance - sink.above

    def copy_patch(tile: Any, to: Any, map_a: Any, barrier: Any) -> None:
        T.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(barrier, T.uint32(stem.patch_bytes)))
        top = first_row(tile) * stem.stride - above
        T.evaluate(T.ptx[copy_a](to, T.address_of(map_a), -left, top, tile // bands * stem.planes, barrier))

    # fmt: off
    @T.prim_func(check_well_formed=False)
    def main() -> None:
        declare()
        map_a: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        if is_copied:
            T.call_packed("runtime.cuTensorMapEncodeTiled", map_a, "int64", 3, a.data, *map_a_arguments)
        map_b: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", map_b, dtype, 2, b.data, *map_b_arguments)
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": tiling.blocks_per_sm})
        block = T.cta_id([grid])
        tid = T.thread_id([threads])
        source = T.decl_buffer((images * stem.height * stem.width,), "uint32", data=a.data)
        pool = T.SMEMPool()
        weights = pool.alloc((slices * columns * piece,), dtype, align=1024)
        patch = pool.alloc((patches * words,), "uint32", align=128)
        staging = pool.alloc((sink.staging[0],), sink.staging[1], align=128)
        of_columns = T.meta_var([pool.alloc((columns,), wide_dtype(load), align=16) for load in store.fetched])
        arrived = pool.alloc((1,), "uint64", align=8)
        full = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        group: T.let[T.int32] = T.tvm_warp_shuffle(0xFFFFFFFF, tid // 128, 0, 32, 32)
        lane: T.let[T.int32] = tid % 128
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(arrived.ptr_to([0]), T.uint32(1))
            for i in T.unroll(2):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx.fence.proxy.async_.shared__cta()
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(arrived.ptr_to([0]), T.uint32(slices * columns * 128))
            for i in T.unroll(slices):  # constants: no kernel before writes them
                T.ptx[copy_b](
                    weights.ptr_to([i * columns * piece]), T.address_of(map_b), i * piece, 0, arrived.ptr_to([0]))
        fetched = T.meta_var(store.fetch(dict.fromkeys(range(len(store.view.groups)), tirx.const(0, "int32")), lane))
        if group == 0:
            store.share(fetched, of_columns, 0, lane)
        T.ptx.griddepcontrol.wait()
        if is_copied:  # noqa: SIM102 - the one is decided here, the other on the device
            if tid == 0:
                copy_patch(block, patch.ptr_to([0]), map_a, full.ptr_to([0]))
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(arrived.ptr_to([0]), 0)
        sums = T.alloc_local((sums_count,), register)
        pair = T.alloc_local((stem.steps * 4,), "uint32")
        desc_b: T.uint64 = T.uint64(0)
        T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_b), weights.ptr_to([0]), 1, 64, 3)
        tile: T.int32 = block
        turn: T.int32 = 0
        while tile < tiles:
            image: T.let[T.int32] = tile // bands
            top: T.let[T.int32] = first_row(tile)
            base: T.let[T.int32] = turn % patches * words
            if is_copied and patches > 1:  # noqa: SIM102 - the one is decided here, the other on the device
                if tirx.all(tid == 0, tile + grid < tiles):
                    copy_patch(tile + grid, patch.ptr_to([(turn + 1) % patches * words]), map_a,
                               full.ptr_to([(turn + 1) % patches]))
            if is_copied:
                T.cuda.mbarrier_wait(full.ptr_to([turn % patches]), turn // patches % 2)
            else:
                for some in T.unroll(-(-stem.patch_rows // rows_at_once)):
                    for part in T.unroll(-(-across // threads)):
                        own_row: T.let[T.int32] = some * rows_at_once + tid // across
                        own_word: T.let[T.int32] = (tid % across if rows_at_once > 1 else part * threads + tid) * vector
                        if tirx.all(own_row < stem.patch_rows, own_word < stem.pitch, tid < rows_at_once * across):
                            r: T.let[T.int32] = top * stem.stride - above + own_row
                            c: T.let[T.int32] = own_word - left * 2
                            begin: T.let[T.int32] = own_row * stem.pitch + own_word
                            for v in T.vectorized(vector):
                                patch[begin + v] = T.uint32(0)
                            if inside(r, c):
                                for v in T.vectorized(vector):
                                    patch[begin + v] = source[((image * stem.height + r) * stem.width + c) + v]
                T.cuda.cta_sync()
            for i in T.serial(m_tiles):
                first: T.let[T.int32] = (i * tiling.consumers + group) * 64
                of_warp: T.let[T.int32] = first + lane // 32 * 16 + lane % 32 // 4
                upper: T.let[T.int32] = base + pixel(of_warp) + stem.of_thread(lane % 4)
                lower: T.let[T.int32] = base + pixel(of_warp + 8) + stem.of_thread(lane % 4)
                gather(pair, patch, (upper, lower))
                T.ptx.wgmma.fence.sync.aligned()
                for j in T.unroll(stem.steps):
                    T.ptx[multiply](
                        *registers(sums, 0, sums_count), *registers(pair, j * 4, 4),
                        desc_b + wide(j // 4, columns * 128 // 16) + wide(j % 4, 2),
                        j > 0, *flags)
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(0)
                sink.emit(sums, staging, (image, top), first, group, lane, of_columns)
            T.cuda.cta_sync()  # nobody reads this patch any more
            if is_copied and patches == 1:  # noqa: SIM102 - as above
                if tirx.all(tid == 0, tile + grid < tiles):
                    copy_patch(tile + grid, patch.ptr_to([0]), map_a, full.ptr_to([0]))
            sink.finish(staging, (image, top), tid)
            tile = tile + grid
            turn = turn + 1
    # fmt: on
    return main
