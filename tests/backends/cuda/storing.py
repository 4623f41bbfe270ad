"""A kernel of Hopper's products without its multiplications: it stores the sums that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.store import wide_dtype
from subtune.backends.cuda.lowering.tirx_pipeline import TIRX_ATTR


def storing(walk: Any, store: Any, params: Sequence[Any], blocks: int, rows: Any = None) -> Any:
    """The function of `sums`, as `test_wgmma_store.fragments` lays them out, and `params`; tiles are dealt to `blocks`.

    Args:
        rows: who makes numbers of the rows; None: nobody does.
    """
    tiling = walk.tiling
    count64, width = tiling.multiplied
    count = count64 * width // 2
    at_once = tiling.consumers if tiling.alternate else 1
    dtype = "uint32" if str(store.epilogue.acc.ty) == "int32" else "float32"
    sums = T.buffer((walk.tiles * tiling.m * tiling.columns,), dtype, align=16, buffer_name="sums")
    group = walk.view.rows[0]

    def declare() -> None:
        for param in (sums, *params):
            T.arg(param.name, param)

    # fmt: off
    @T.prim_func(check_well_formed=False)
    def main() -> None:
        declare()
        T.device_entry()
        block = T.cta_id([blocks])
        tid = T.thread_id([128 * tiling.consumers])
        pool = T.SMEMPool()
        staged = pool.alloc((store.shared_elements(),), store.dtype, align=128)
        columns = T.meta_var([
            pool.alloc((tiling.fetched_elements(),), wide_dtype(load), align=16) for load in store.fetched])
        numbers = T.meta_var(rows.declare(pool) if rows is not None else None)
        pool.commit()
        consumer: T.let[T.int32] = tid // 128
        lane: T.let[T.int32] = tid % 128
        own = T.alloc_local((count,), dtype)
        tile: T.int32 = block * at_once + (consumer if tiling.alternate else 0)
        while tile < walk.tiles:
            at = T.meta_var(walk.stored_at(walk.where(tile, 0, consumer), 0, consumer))
            fetched = T.meta_var(store.fetch(at, lane))
            first: T.let[T.int32] = 0 if tiling.alternate or tiling.swapped else consumer * tiling.m_consumer
            held = T.meta_var(store.load_ahead(at, first, lane))
            for i in T.unroll(count):
                own[i] = sums[tile * (tiling.m * tiling.columns)
                              + (0 if tiling.alternate else consumer) * (count * 128) + i * 128 + lane]
            base: T.let[T.int32] = consumer * 2 * tiling.stored_columns
            store.share(fetched, columns, base, lane)
            if rows is not None:  # noqa: SIM102 - the one is decided here, the other in the kernel
                if lane < tiling.m_consumer:
                    rows._of_row(numbers, tirx.min(at[group] + first + lane, walk.view.extent(group) - 1), first + lane)
            T.cuda.warpgroup_sync(consumer + 1)
            own_store = T.meta_var(store if rows is None else rows.taken(store, numbers, 0, (first, at), lane))
            own_store.emit(own, staged, at, first, consumer, lane, tiling.m_consumer, held, columns, base)
            tile = tile + blocks * at_once
    # fmt: on
    return main.with_attrs({TIRX_ATTR: 1, "tirx.is_scheduled": 1, "tirx.noalias": True})
