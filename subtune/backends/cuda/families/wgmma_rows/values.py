"""Numbers of a tile's rows, computed beside the multiplications; and how they reach those who store the tile.

    computing:    for tile of this block:  wait spent[of tile];  numbers[of tile] = steps;  ready[of tile]
    multiplying:  ...                      wait ready[of tile];  store the tile;  spent[of tile]

Those warps compute that share a warpgroup with the thread that copies. The numbers of two tiles have room: of one that
is stored and of the one after it, or of the two that consumers have in turns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma.walk import Walk
from subtune.backends.cuda.families.wgmma_rows.store import RowStore
from subtune.patterns.row_product import RowProduct
from subtune.tir.expressions import distinct, loads
from subtune.tir.rebuild import Rebuild

_WARPS = 3
_THREADS = 32 * _WARPS
_UNROLLED = 16
_HEIGHTS = 2  # rows of a multiplying thread in 64: eight apart


@dataclass(frozen=True, slots=True)
class Shared:
    """In shared memory: `numbers` of two tiles, for each that is used; barriers between who makes and who uses them."""

    numbers: tuple[Any, ...]
    ready: Any
    spent: Any


@dataclass(frozen=True, slots=True)
class RowValues:
    """The numbers of `pattern`, from the kernel's own `buffers` for its parameters."""

    pattern: RowProduct
    walk: Walk
    buffers: Mapping[Any, Any]

    @property
    def tiling(self) -> Tiling:
        return self.walk.tiling

    @property
    def used(self) -> tuple[int, ...]:
        """Steps whose numbers the epilogue reads."""
        return tuple(step for _, step in self.pattern.numbers)

    def declare(self, pool: Any) -> Shared:
        numbers = tuple(pool.alloc((2 * self.tiling.m,), "float32", align=16) for _ in self.used)
        return Shared(numbers, *(pool.alloc((2,), "uint64", align=8) for _ in range(2)))

    def prepare(self, shared: Shared) -> None:
        """The barriers, by one thread."""
        users = 4 * (1 if self.tiling.alternate else self.tiling.consumers)  # warps
        for i in range(2):
            T.evaluate(T.ptx.mbarrier.init.shared.b64(shared.ready.ptr_to([i]), T.uint32(_WARPS)))
            T.evaluate(T.ptx.mbarrier.init.shared.b64(shared.spent.ptr_to([i]), T.uint32(users)))

    def compute(self, shared: Shared, block: Any, rank: Any, tid: Any) -> None:
        """What the warps beside the copying one do, from the first tile of the block to the last."""
        with T.If(tid >= 32), T.Then():
            self._compute(shared, block, rank, tid - 32)

    def _compute(self, shared: Shared, block: Any, rank: Any, thread: Any) -> None:
        walk, t = self.walk, self.tiling
        (group,) = walk.view.rows
        turns, last = -(-t.m // _THREADS), walk.view.extent(group) - 1

        # fmt: off
        @T.inline
        def body() -> None:
            tile: T.int32 = block
            count: T.int32 = 0
            while tile < walk.tiles:
                at = T.meta_var(walk.where(tile, rank, 0))
                T.cuda.mbarrier_wait(shared.spent.ptr_to([count % 2]), count // 2 % 2 ^ 1)
                for turn in T.serial(turns):
                    own: T.let[T.int32] = turn * _THREADS + thread
                    if own < t.m:
                        self._of_row(shared, tirx.min(at[group] + own, last), count % 2 * t.m + own)
                _arrive(shared.ready.ptr_to([count % 2]), thread)
                count = count + 1
                tile = tile + walk.clusters
        # fmt: on

        body()

    def _of_row(self, shared: Shared, row: Any, to: Any) -> None:
        """The numbers of `row`, stored at `to`."""
        values = T.alloc_local((len(self.pattern.steps),), "float32")
        known = {var: values[i] for i, var in enumerate(self.pattern.known)}
        for i, step in enumerate(self.pattern.steps):
            if step.axis is None:
                T.buffer_store(values, Rebuild({step.row: row, **known}, None, self.buffers)(step.value), [i])
                continue
            T.buffer_store(values, T.float32(0), [i])
            vector = next(v for v in (4, 2, 1) if step.extent % v == 0)
            given = distinct([load for load in loads(step.value) if load.indices[-1].same_as(step.axis)])
            registers = [T.alloc_local((vector,), "float32") for _ in given]
            with (T.unroll if step.extent <= _UNROLLED else T.serial)(step.extent // vector) as piece:
                for own, load in zip(registers, given, strict=True):
                    with T.vectorized(vector) as v:
                        at = {step.row: row, step.axis: piece * vector + v}
                        T.buffer_store(own, Rebuild(at, None, self.buffers)(load), [v])
                with T.unroll(vector) as v:
                    parts = {load: own[v] for load, own in zip(given, registers, strict=True)}
                    at = {step.row: row, step.axis: piece * vector + v, **known}
                    T.buffer_store(values, values[i] + Rebuild(at, parts, self.buffers)(step.value), [i])
        for there, i in zip(shared.numbers, self.used, strict=True):
            T.buffer_store(there, values[i], [to])

    def _place(self, before: Any, consumer: Any) -> tuple[Any, Any]:
        """Which half of `Shared` has the numbers of a consumer's tile, and the phase; `before`: tiles it had."""
        return (consumer, before % 2) if self.tiling.alternate else (before % 2, before // 2 % 2)

    def bound(self, store: Store, shared: Shared, where: tuple[Any, Any, Any, dict[int, Any]], lane: Any) -> Store:
        """`store` with the numbers of a tile, in registers those of the rows that a thread multiplies."""
        assert isinstance(store, RowStore)
        before, consumer, first, corner = where
        slot, phase = self._place(before, consumer)
        T.evaluate(T.cuda.mbarrier_wait(shared.ready.ptr_to([slot]), phase))
        return self.taken(store, shared, slot, (first, corner), lane)

    def taken(self, store: RowStore, shared: Shared, slot: Any, where: tuple[Any, dict[int, Any]], lane: Any) -> Store:
        """`store` with the numbers that are there; `where`: the consumer's first row, and where the tile is."""
        first, corner = where
        rows = self.tiling.multiplied[0] * _HEIGHTS
        registers = [T.alloc_local((rows,), "float32") for _ in self.used]
        for own, there in zip(registers, shared.numbers, strict=True):
            for row in range(rows):
                at = slot * self.tiling.m + first + lane // 32 * 16 + lane % 32 // 4 + row // 2 * 64 + row % 2 * 8
                T.buffer_store(own, there[at], [row])
        return store.of_tile(registers, shared.numbers, slot * self.tiling.m, corner)

    def free(self, shared: Shared, before: Any, consumer: Any, lane: Any) -> None:
        slot, _ = self._place(before, consumer)
        _arrive(shared.spent.ptr_to([slot]), lane)


def _arrive(barrier: Any, thread: Any) -> None:
    """Of a warp, all of whose threads are done."""
    T.evaluate(T.cuda.warp_sync())
    with T.If(thread % 32 == 0), T.Then():
        T.evaluate(T.ptx.mbarrier.arrive.shared.b64(barrier, T.uint32(1)))


def shared_bytes(tiling: Tiling, numbers: int) -> int:
    """Of `Shared`."""
    return numbers * 2 * 4 * tiling.m + 4 * 8 + 16
