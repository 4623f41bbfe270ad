"""The kernel of a network's first convolution: patches of the input, fragments out of them, products, stores.

    for tile of this block:    copy the next tile's patch;  wait for this one's
                               for 64 pixels of this warpgroup:  fragments from the patch;  wgmma;  store

The copies are the hardware's own where rows of the input are multiples of 16 bytes, and then run while the tile before
is computed; else all threads copy a patch and wait for one another.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.stem.shape import Stem
from subtune.backends.cuda.families.wgmma.kernel import instruction
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.tma import copy_instruction

_SWIZZLE_128B, _L2_PROMOTION_128B = 3, 2  # CUtensorMapSwizzle, CUtensorMapL2promotion


# long: one kernel in TVMScript, whose roles share barriers, buffers and indices
def stem_func(params: tuple[Any, ...], a: Any, b: Any, stem: Stem, sizes: tuple[int, int], store: Store) -> Any:
    """The PrimFunc with `params`, two of which are the images `a` and the packed weights `b`; `sizes`: images, blocks."""
    images, grid = sizes
    tiling, view, dtype = store.tiling, store.view, str(b.dtype)
    columns, bands = tiling.columns, stem.out_height // stem.rows
    tiles, slices = images * bands, int(b.shape[1]) // 64
    map_b_arguments = [int(b.shape[1]), columns, int(b.shape[1]) * 2, 64, columns, 1, 1,
                       0, _SWIZZLE_128B, _L2_PROMOTION_128B, 0]  # fmt: skip
    row_bytes, is_copied = stem.width * 4, stem.is_copied
    left, above = (stem.before[1] + stem.shift) // 2, stem.before[0]
    map_a_arguments = [stem.width // 2, stem.height, images, row_bytes, stem.height * row_bytes,
                       stem.pitch // 2, stem.patch_rows, 1, 1, 1, 1, 0, 0, _L2_PROMOTION_128B, 0]  # fmt: skip
    copy_a, copy_b, multiply = copy_instruction(3), copy_instruction(2), instruction(dtype, columns)
    threads = 128 * tiling.consumers
    words, patches = stem.patch_words, 2 if is_copied else 1
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
        return stem.shift + m // stem.out_width * (stem.stride * stem.pitch) + m % stem.out_width * step

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

    def copy_patch(tile: Any, to: Any, map_a: Any, barrier: Any) -> None:
        T.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(barrier, T.uint32(stem.patch_rows * stem.pitch * 4)))
        top = tile % bands * (stem.rows * stem.stride) - above
        T.evaluate(T.ptx[copy_a](to, T.address_of(map_a), -left, top, tile // bands, barrier))

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
        weights = pool.alloc((slices * columns * 64,), dtype, align=1024)
        patch = pool.alloc((patches * words,), "uint32", align=128)
        staging = pool.alloc((store.shared_elements(),), store.dtype, align=128)
        arrived = pool.alloc((1,), "uint64", align=8)
        full = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        group: T.let[T.int32] = T.tvm_warp_shuffle(0xFFFFFFFF, tid // 128, 0, 32, 32)
        lane: T.let[T.int32] = tid % 128
        T.ptx.griddepcontrol.launch_dependents()
        if tid == 0:
            T.ptx.mbarrier.init.shared.b64(arrived.ptr_to([0]), T.uint32(1))
            for i in T.unroll(2):
                T.ptx.mbarrier.init.shared.b64(full.ptr_to([i]), T.uint32(1))
            T.ptx.fence.mbarrier_init.release.cluster()
            T.ptx.fence.proxy.async_.shared__cta()
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(arrived.ptr_to([0]), T.uint32(slices * columns * 128))
            for i in T.unroll(slices):  # constants: no kernel before writes them
                T.ptx[copy_b](weights.ptr_to([i * columns * 64]), T.address_of(map_b), i * 64, 0, arrived.ptr_to([0]))
        T.ptx.griddepcontrol.wait()
        if is_copied:  # noqa: SIM102 - the one is decided here, the other on the device
            if tid == 0:
                copy_patch(block, patch.ptr_to([0]), map_a, full.ptr_to([0]))
        T.cuda.cta_sync()
        T.cuda.mbarrier_wait(arrived.ptr_to([0]), 0)
        sums = T.alloc_local((sums_count,), "float32")
        pair = T.alloc_local((stem.k16 * 4,), "uint32")
        desc_b: T.uint64 = T.uint64(0)
        T.cuda.wgmma.encode_matrix_descriptor(T.address_of(desc_b), weights.ptr_to([0]), 1, 64, 3)
        tile: T.int32 = block
        turn: T.int32 = 0
        while tile < tiles:
            image: T.let[T.int32] = tile // bands
            top: T.let[T.int32] = tile % bands * stem.rows
            base: T.let[T.int32] = turn % 2 * words if is_copied else 0
            if is_copied:
                if tirx.all(tid == 0, tile + grid < tiles):
                    copy_patch(tile + grid, patch.ptr_to([(turn + 1) % 2 * words]), map_a,
                               full.ptr_to([(turn + 1) % 2]))
                T.cuda.mbarrier_wait(full.ptr_to([turn % 2]), turn // 2 % 2)
            else:
                for some in T.unroll(-(-words // threads)):
                    w: T.let[T.int32] = some * threads + tid
                    if w < stem.patch_rows * stem.pitch:
                        r: T.let[T.int32] = top * stem.stride - above + w // stem.pitch
                        c: T.let[T.int32] = w % stem.pitch - left * 2
                        patch[w] = T.if_then_else(
                            inside(r, c), source[(image * stem.height + r) * stem.width + c], T.uint32(0))
                T.cuda.cta_sync()
            for i in T.serial(m_tiles):
                first: T.let[T.int32] = (i * tiling.consumers + group) * 64
                upper: T.let[T.int32] = base + pixel(first + lane // 32 * 16 + lane % 32 // 4) + lane % 4
                lower: T.let[T.int32] = base + pixel(first + lane // 32 * 16 + lane % 32 // 4 + 8) + lane % 4
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
            T.cuda.cta_sync()  # nobody reads this patch any more
            tile = tile + grid
            turn = turn + 1
    # fmt: on
    return main
