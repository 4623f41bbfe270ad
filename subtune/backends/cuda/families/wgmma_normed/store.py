"""How rows are normalised that a block holds in registers, and stored.

    x = epilogue(sums)                     as `wgmma.store` has it, kept in registers: 16 bytes of a row at a time
    for each total of a norm:
        total = sum of term(x, totals)     of the thread's elements, then of the threads that have the row
    out[...] = value(x, totals)

A row's threads are neighbours in a warp: nobody waits for other warps. Rows of several blocks, which sent one another
their sums, were no faster than a kernel for the norm (768 columns on an H100: 2 % of BERT slower).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx.op import tvm_warp_shuffle_xor

from subtune.backends.cuda.families.wgmma.store import Store
from subtune.backends.cuda.source.emit import FULL_WARP
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.normed import Normed
from subtune.tir.expressions import loads, variables
from subtune.tir.rebuild import Rebuild


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
        return self.chunks * self.turns * 32 // self.threads_of_row // (self.tiling.m_consumer // 4)

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

    def emit(
        self, sums: Any, staging: Any, corner: dict[int, Any], first: Any, consumer: Any, lane: Any, rows: int,
        held: Sequence[Any] = (), shared: Sequence[Any] = (), base: Any = 0, after: dict[int, Any] | None = None,
    ) -> None:  # fmt: skip
        tile = _Tile(self, corner, first, consumer, lane)
        kept = T.alloc_local((self.chunks * self.turns * self.vector,), self.epilogue.dtype)
        totals = T.alloc_local((len(self.norm.totals) * self.rows_of_thread,), "float32")
        ready = self.exchange.ready(shared, base, lane)

        def staged(i: Any, in_tile: Any, own: Any) -> Any:
            return self.staged(sums[i], corner, corner[self.view.n] + in_tile, ready(in_tile, own), {})

        tile.keep(kept, staged, staging, held, after)
        for index in range(len(self.norm.totals)):
            tile.add_up(kept, totals, index)
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
            exchange.leave()

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
    if view.extent(view.n) != tiling.columns or tiling.swapped:
        return NotApplicable(f"{tiling.columns} columns are no whole row of a warp")
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
