"""How rows are normalised that the blocks of a cluster hold in registers, and stored.

    x = epilogue(sums)                     as `wgmma.store` has it, kept in registers: 16 bytes of a row at a time
    for each total of a norm:
        own = sum of term(x, totals)       of the thread's elements, then of the threads that have the row
        own -> every block of the cluster  by asynchronous stores, which count as bytes at a barrier there
        total = sum of theirs              once all have come
    out[...] = value(x, totals)

A warp waits for the warps that have the same rows, for nobody else. Two barriers take turns: whoever sends
the next total has seen this one's, so that bytes of one are never taken for another's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx.op import tvm_warp_shuffle_xor

from subtune.backends.cuda.families.wgmma.store import Block, Store
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.source.emit import FULL_WARP
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.normed import Normed
from subtune.tir.expressions import loads, variables
from subtune.tir.rebuild import Rebuild

_SLOTS = 2  # of totals, and of barriers


@dataclass(frozen=True, slots=True)
class Meetings:
    """Who hand one another their sums of a row: `parts` of it, of every block and, where each has some of the columns,
    of its consumers. A block has `count` meetings, of the `warps` in it that have the same `rows`.
    """

    tiling: Tiling

    @property
    def warps(self) -> int:
        return self.tiling.consumers if self.tiling.swapped else 1

    @property
    def count(self) -> int:
        return 4 * self.tiling.consumers // self.warps

    @property
    def parts(self) -> int:
        return self.tiling.across * self.warps

    @property
    def rows(self) -> int:
        return self.tiling.m_consumer // 4

    @property
    def nbytes(self) -> int:
        """Shared memory of a block."""
        return 0 if self.parts == 1 else _SLOTS * self.count * (self.parts * self.rows * 4 + 8)


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory in which a block gets the sums of others, and the barriers that say when they have come."""

    sums: Any
    barriers: Any


@dataclass(frozen=True, slots=True)
class NormedStore(Store):
    """`norm` of what `epilogue` computes is stored; that as well, to `between`, where it is no `None`.

    `per_column`: loads of the norm that a thread does as one vector for all rows of a chunk. `norm_buffers`: the
    kernel's, for each parameter that the norm names.
    """

    norm: Normed
    between: Any
    per_column: tuple[Any, ...]
    norm_buffers: Mapping[Any, Any]

    @property
    def threads_of_row(self) -> int:
        return self.exchange.threads_of_row

    @property
    def rows_of_thread(self) -> int:
        """Vectors of different rows, over all chunks."""
        return self.chunks * self.turns // self.chunks_of_row

    @property
    def chunks_of_row(self) -> int:
        return self.chunks * self.turns * 32 // self.threads_of_row // self.meetings.rows

    @property
    def meetings(self) -> Meetings:
        return Meetings(self.tiling)

    def axes(self, at: dict[int, Any], column: Any) -> dict[Any, Any]:
        """The norm's, for an element of the product."""
        here = self.index(self.epilogue.indices, {**at, self.view.n: column})
        return dict(zip(self.norm.axes, here, strict=True))

    def of_norm(
        self, expr: Any, at: dict[int, Any], column: Any, values: Mapping[Any, Any],
        loaded: Mapping[Any, Any] | None = None,
    ) -> Any:  # fmt: skip
        """`expr` of the norm for an element; `values`: of its variables, `loaded`: of loads."""
        parts = {load: value.astype("float32") for load, value in (loaded or {}).items()}
        return Rebuild(self.axes(at, column) | dict(values), parts, self.norm_buffers)(expr)

    def obstacle(self, shared_bytes: int) -> str:
        """Why this does not fit a block; "" where it does."""
        needed = self.tiling.shared_bytes(self.dtype, len(self.fetched)) + self.meetings.nbytes
        return f"{needed} bytes of shared memory" if needed > shared_bytes else ""

    def allocate(self, pool: Any) -> Shared | None:
        who = self.meetings
        if who.parts == 1:
            return None
        sums = pool.alloc((_SLOTS * who.count * who.parts * who.rows,), "float32", align=16)
        return Shared(sums, pool.alloc((_SLOTS * who.count,), "uint64", align=8))

    def prepare(self, own: Shared | None) -> None:
        if own is None:
            return
        for i in range(_SLOTS * self.meetings.count):
            T.evaluate(T.ptx.mbarrier.init.shared.b64(own.barriers.ptr_to([i]), T.uint32(self.meetings.warps)))

    def emit(
        self, sums: Any, staging: Any, corner: dict[int, Any], first: Any, consumer: Any, lane: Any, rows: int,
        held: Sequence[Any] = (), shared: Sequence[Any] = (), base: Any = 0, after: dict[int, Any] | None = None,
        block: Block | None = None,
    ) -> None:  # fmt: skip
        tile = _Tile(self, corner, first, consumer, lane)
        kept = T.alloc_local((self.chunks * self.turns * self.vector,), self.epilogue.dtype)
        totals = T.alloc_local((len(self.norm.totals) * self.rows_of_thread,), "float32")
        ready = self.exchange.ready(shared, base, lane)

        def staged(i: Any, in_tile: Any, own: Any) -> Any:
            return self.staged(sums[i], corner, corner[self.view.n] + in_tile, ready(in_tile, own))

        tile.keep(kept, staged, staging, held, after)
        for index in range(len(self.norm.totals)):
            tile.add_up(kept, totals, index)
            if block is not None and block.own is not None:
                tile.hand_over(totals, index, block)
        tile.give(kept, totals)


@dataclass(frozen=True, slots=True)
class _Tile:
    """What a thread, `lane` of a consumer's 128, does with the tile at `corner`."""

    store: NormedStore
    corner: dict[int, Any]
    first: Any
    consumer: Any
    lane: Any

    def _own(self, chunk: Any, turn: Any) -> Any:
        """Of a vector of `kept`, where it begins."""
        return (chunk * self.store.turns + turn) * self.store.vector

    def _row(self, chunk: Any, turn: Any, index: int) -> Any:
        """Of `totals`, the one of the vector's row."""
        return index * self.store.rows_of_thread + chunk // self.store.chunks_of_row * self.store.turns + turn

    def _place(self, chunk: Any, turn: Any) -> tuple[Any, Any, Any]:
        return self.store.place(self.corner, self.first, chunk, turn, self.lane)

    def _when_inside(self, at: dict[int, Any], column: Any, act: Callable[[], None]) -> None:
        condition = self.store.inside(at, column)
        if condition is True:
            act()
        else:
            with T.If(condition), T.Then():
                act()

    def keep(self, kept: Any, staged: Any, staging: Any, held: Sequence[Any], after: dict[int, Any] | None) -> None:
        """What the epilogue makes of the sums to registers `kept`, zeros beyond the result; see `Store.emit`."""
        store, exchange, vector = self.store, self.store.exchange, self.store.vector
        ahead = store.ahead if held else 0
        own_base = T.Bind(exchange.base(self.consumer, self.lane))
        eight, values = T.alloc_local((8,), store.dtype), T.alloc_local((vector,), store.dtype)
        results = T.alloc_local((vector,), store.epilogue.dtype)
        others = [T.alloc_local((vector,), str(load.source.dtype)) for load in store.wide]
        with T.unroll(store.chunks) as chunk:
            exchange.put(staged, eight, staging, own_base, chunk, self.lane)
            exchange.meet(self.consumer)
            with T.unroll(store.turns) as turn:
                where, at, column = self._place(chunk, turn)
                own = self._own(chunk, turn)
                with T.vectorized(vector) as v:
                    T.buffer_store(kept, tirx.const(0, store.epilogue.dtype), [own + v])

                def compute() -> None:
                    with T.vectorized(vector) as v:
                        T.buffer_store(values, staging[own_base + where + v], [v])
                    if ahead:
                        store.take(others, held, chunk, turn)
                    else:
                        store.load_wide(others, 0, at, column)
                    with T.unroll(vector) as v:
                        loaded = store.loaded(others, v)
                        value = store.computed(values[v], {**at, store.view.n: column + v}, loaded)
                        T.buffer_store(results, value.astype(store.epilogue.dtype), [v])
                    with T.vectorized(vector) as v:
                        T.buffer_store(kept, results[v], [own + v])
                    if store.between is not None:
                        self._store(store.between, kept, own, at, column)

                self._when_inside(at, column, compute)
                if ahead:
                    store.load_next(list(held), (self.corner, after), self.first, chunk, turn, self.lane)
            T.evaluate(T.cuda.warp_sync())

    def add_up(self, kept: Any, totals: Any, index: int) -> None:
        """The rows' sums of the norm's term `index`, over all that the tile has of them, to `totals`."""
        store = self.store
        count = store.rows_of_thread
        with T.unroll(count) as row:
            T.buffer_store(totals, T.float32(0), [index * count + row])
        mine = T.alloc_local((store.vector,), store.epilogue.dtype)
        with T.unroll(store.chunks) as chunk, T.unroll(store.turns) as turn:
            _, at, column = self._place(chunk, turn)
            store.read(mine, kept, self._own(chunk, turn))
            with T.unroll(store.vector) as v:
                values = {store.norm.x: mine[v].astype("float32"), **self._known(totals, chunk, turn, index)}
                to = self._row(chunk, turn, index)
                term = store.of_norm(store.norm.terms[index], at, column + v, values)
                T.buffer_store(totals, totals[to] + term, [to])
        with T.unroll(count) as row:
            self._add_threads(totals, index * count + row)

    def _add_threads(self, values: Any, at: Any) -> None:
        """`values[at]`, added up over the threads of a row."""
        width = self.store.threads_of_row
        for offset in (width >> step for step in range(1, width.bit_length())):
            other = tvm_warp_shuffle_xor(tirx.const(FULL_WARP, "uint32"), values[at], offset, 32, 32)
            T.buffer_store(values, values[at] + other, [at])

    def _known(self, totals: Any, chunk: Any, turn: Any, count: int) -> dict[Any, Any]:
        """The first `count` totals of the vector's row."""
        return {self.store.norm.totals[i]: totals[self._row(chunk, turn, i)] for i in range(count)}

    def hand_over(self, totals: Any, index: int, block: Block) -> None:
        """The sums of `totals` over all parts of the rows, that everybody sends every block."""
        store, tiling, width = self.store, self.store.tiling, self.store.threads_of_row
        parts, rows, count = store.meetings.parts, store.meetings.rows, store.rows_of_thread
        thread, warp = self.lane % 32, self.lane // 32
        room = warp if tiling.swapped else self.consumer * 4 + warp
        part = block.rank * tiling.consumers + self.consumer if tiling.swapped else block.rank
        number = T.Bind(block.tiles_before * len(store.norm.totals) + index)
        slot = T.Bind(number % _SLOTS * store.meetings.count + room)
        sums, barrier = block.own.sums, block.own.barriers.ptr_to([slot])
        base = T.Bind(slot * (parts * rows))
        T.evaluate(T.cuda.warp_sync())  # all have read what was in the slot
        with T.If(thread == 0), T.Then():
            coming = tiling.across * rows * 4  # those of one consumer, where several wait
            T.evaluate(T.ptx.mbarrier.arrive.expect_tx.shared.b64(barrier, T.uint32(coming)))
        send = T.ptx.st_async.shared__cluster.mbarrier__complete_tx__bytes.f32
        own, bell = T.alloc_local((1,), "uint32"), T.alloc_local((1,), "uint32")
        first_row = thread // width
        for some in range(0, tiling.across, width):
            target = T.Bind(thread % width + some)
            with T.If(target < tiling.across), T.Then():
                address = T.cuda.cvta_generic_to_shared(sums.ptr_to([base + part * rows + first_row]))
                T.evaluate(T.ptx.mapa.shared__cluster.u32(own[0], address, T.cast(target, "uint32")))
                address = T.cuda.cvta_generic_to_shared(barrier)
                T.evaluate(T.ptx.mapa.shared__cluster.u32(bell[0], address, T.cast(target, "uint32")))
                for i in range(count):
                    there = own[0] + T.uint32(i * (32 // width) * 4)
                    T.evaluate(send(there, totals[index * count + i], bell[0]))
        T.evaluate(T.cuda.mbarrier_wait_acquire_cluster(barrier, number // _SLOTS % 2))
        for i in range(count):
            row = base + i * (32 // width) + first_row
            T.buffer_store(totals, T.float32(0), [index * count + i])
            for some in range(0, parts, width):
                with T.If(thread % width + some < parts), T.Then():
                    theirs = sums[row + (thread % width + some) * rows]
                    T.buffer_store(totals, totals[index * count + i] + theirs, [index * count + i])
            self._add_threads(totals, index * count + i)

    def give(self, kept: Any, totals: Any) -> None:
        """The normalised rows, to memory."""
        store, norm, vector = self.store, self.store.norm, self.store.vector
        results = T.alloc_local((vector,), str(norm.out.dtype))
        mine = T.alloc_local((vector,), store.epilogue.dtype)
        columns = [T.alloc_local((vector,), str(load.source.dtype)) for load in store.per_column]
        with T.unroll(store.chunks) as chunk:
            _, at, column = self._place(chunk, 0)
            for load, local in zip(store.per_column, columns, strict=True):
                with T.vectorized(vector) as v:
                    where = [Rebuild(store.axes(at, column + v))(i) for i in load.indices]
                    T.buffer_store(local, tirx.BufferLoad(store.norm_buffers[load.source], where), [v])
            with T.unroll(store.turns) as turn:
                _, at, column = self._place(chunk, turn)

                def write() -> None:
                    store.read(mine, kept, self._own(chunk, turn))
                    with T.unroll(vector) as v:
                        values = {norm.x: mine[v].astype("float32")}
                        values |= self._known(totals, chunk, turn, len(norm.totals))
                        loaded = {load: local[v] for load, local in zip(store.per_column, columns, strict=True)}
                        found = store.of_norm(norm.value, at, column + v, values, loaded)
                        T.buffer_store(results, found.astype(results.dtype), [v])
                    self._store(store.norm_buffers[norm.out], results, 0, at, column)

                self._when_inside(at, column, write)

    def _store(self, to: Any, values: Any, base: Any, at: dict[int, Any], column: Any) -> None:
        store = self.store
        with T.vectorized(store.vector) as v:
            where = store.index(store.epilogue.indices, {**at, store.view.n: column + v})
            T.buffer_store(to, values[base + v].astype(str(to.dtype)), where)


def normed_store(
    store: Store, norm: Normed, buffers: Mapping[Any, Any], between: Any | None
) -> NormedStore | NotApplicable:
    """`store` of the product, made one of its norm; `buffers`: the kernel's, for each parameter that the norm names."""
    view, tiling = store.view, store.tiling
    if view.extent(view.n) != tiling.columns * tiling.across:
        return NotApplicable(f"{tiling.across} tiles of {tiling.columns} columns are no whole row")
    if store.vector == 1 or store.exchange.threads_of_row > 32:
        return NotApplicable("rows are not stored as vectors")
    column = norm.axes[-1]
    others = set(norm.axes[:-1])
    found: list[Any] = []
    for load in loads(norm.value):
        is_new = not any(tvm_ffi.structural_equal(load, known, map_free_vars=False) for known in found)
        *outer, last = load.indices
        fits = last.same_as(column) and not variables(outer) & others and int(load.source.shape[-1]) % store.vector == 0
        if is_new and fits and dtype_bits(str(load.source.dtype)) * store.vector <= 128:
            found.append(load)
    own = {field.name: getattr(store, field.name) for field in fields(Store)}
    return NormedStore(**own, norm=norm, between=between, per_column=tuple(found), norm_buffers=buffers)
