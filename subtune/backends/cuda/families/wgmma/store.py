"""A tile of sums on its way to memory: the epilogue on registers, an exchange in shared memory, 16-byte stores.

    per chunk, of some rows and columns:
        staged = first(sum, column)             on the registers of the multiplication: bias, scale, activation
        out[...] = rest(staged, row, column)    after the `exchange`, 16 bytes of a row each: residual and the like

What `rest` loads of rows and columns, a residual say, is on its way while the tile is multiplied, as far as there are
registers for it. The split is `epilogue.split`'s. `staged` has the dtype that the model's own TIR has there, so nothing
is rounded that the model does not round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.byte_floats import permuted, words_of
from subtune.backends.cuda.families.wgmma.epilogue import Epilogue
from subtune.backends.cuda.families.wgmma.exchange import Exchange
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma.walk import Walk, bound
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm_view import GemmView
from subtune.tir.rebuild import NARROW, Rebuild

_THREADS = 128  # of a consumer
_ACCESS_BITS = 128
SPARE_REGISTERS = 8  # that nothing loaded ahead may take


class CopiedTo(Protocol):
    """A result that has a part of what is stored (`store_copies`)."""

    def store(self, values: Any, row: Any, column: Any) -> None:
        """A vector of a row from `column` on, if it is in that part."""


@dataclass(frozen=True, slots=True)
class Store:
    """How a tile is stored: `first` of the epilogue is staged as `dtype`; `vector` elements of a row go at once.

    `wide`: loads of the rest that a thread does as one vector. `fetched`: loads of `first`, of the columns' own
    operands, that are done before the tile is multiplied; the last `late` are for the rest. `buffers`: the kernel's,
    for each of the workload's. `copies`: results that have parts of what is stored.
    """

    epilogue: Epilogue
    first: Any
    dtype: str
    vector: int
    exchange: Exchange
    wide: tuple[Any, ...]
    fetched: tuple[Any, ...]
    walk: Walk
    buffers: dict[Any, Any]
    late: int
    copies: tuple[CopiedTo, ...]

    @property
    def view(self) -> GemmView:
        return self.walk.view

    @property
    def tiling(self) -> Tiling:
        return self.walk.tiling

    def shared_elements(self) -> int:
        return self.exchange.shared_elements()

    @property
    def turns(self) -> int:
        """Vectors of a thread in a chunk."""
        return self.exchange.turns

    @property
    def chunks(self) -> int:
        """Of a consumer's tile."""
        return self.exchange.chunks(self.tiling.m_consumer)

    @property
    def spare_registers(self) -> int:
        return self.tiling.spare_registers - SPARE_REGISTERS

    @property
    def ahead(self) -> int:
        """Chunks whose wide loads are begun before the tile is multiplied, or while others are stored."""
        registers = sum(self.vector * dtype_bits(str(load.source.dtype)) // 32 for load in self.wide) * self.turns
        spare = self.spare_registers
        most = min(self.chunks, max(0, spare // registers)) if registers else 0
        # a divisor: what is held of the next tile then takes the place of this one's
        return max((count for count in range(1, most + 1) if self.chunks % count == 0), default=0)

    def env(self, at: dict[int, Any]) -> dict[Any, Any]:
        """The anchor's axes from the index into each group of them."""
        values = {var: tirx.const(0, "int32") for var in self.epilogue.axes}
        for g, index in at.items():
            group = self.view.groups[g]
            for axis, extent in reversed(list(zip(group.axes, group.extents, strict=True))):
                last = axis == group.axes[0]
                values[self.epilogue.axes[axis]] = index if last else index % extent
                index = index if last else index // extent
        return values

    def _of_column(self, at: dict[int, Any], column: Any) -> dict[int, Any]:
        n = self.view.n
        if self.view.extent(n) % self.tiling.columns:
            column = tirx.min(column, self.view.extent(n) - 1)  # what is loaded beyond is not stored
        return {g: at[g] for g in self.view.batch} | {n: column}

    def of_sum(self, index: Any) -> dict[Any, Any]:
        """What else the epilogue's variables are for the sum in register `index`; for those who know more of a row."""
        return {}

    def store_copies(self, values: Any, at: dict[int, Any], column: Any) -> None:
        """A vector that was stored, once more."""
        if not self.copies:
            return
        *rows, own_column = self.index(self.epilogue.indices, {**at, self.view.n: column})
        row: Any = tirx.const(0, "int32")
        for index, extent in zip(rows, self.epilogue.out.shape, strict=False):
            row = row * int(extent) + index
        row, own_column = T.Bind(row), T.Bind(own_column)
        for copy in self.copies:
            copy.store(values, row, own_column)

    def end_vector(self, values: Any, chunk: Any, turn: Any) -> None:
        """After a thread stored `values` of a row, or left them where they are none of the tile's own."""

    def end_chunk(self, corner: dict[int, Any], first: Any, chunk: Any, lane: Any) -> None:
        """After all vectors of a chunk, with all threads of the warp."""

    def staged(
        self, total: Any, at: dict[int, Any], column: Any, fetched: list[Any], numbers: Mapping[Any, Any] | None = None
    ) -> Any:
        """`first` of one sum; `fetched`: the values of what was loaded before, `numbers`: of variables."""
        if str(total.ty.dtype) == "uint32":  # registers of an integer multiplication
            total = tirx.reinterpret("int32", total)
        parts = {self.epilogue.acc: total, **dict(zip(self.fetched, fetched, strict=True))}
        value = Rebuild(self.env(self._of_column(at, column)) | dict(numbers or {}), parts, self.buffers)(self.first)
        return value.astype(self.dtype)

    def fetch(self, corner: dict[int, Any], lane: Any) -> list[Any]:
        """Begin to load the columns' own operands: registers of a thread for each of `fetched`."""
        registers = [T.alloc_local((len(self._own(lane)),), wide_dtype(load)) for load in self.fetched]
        self.fetch_again(registers, corner, lane)
        return registers

    def fetch_again(self, registers: list[Any], corner: dict[int, Any], lane: Any) -> None:
        """The same of another tile."""
        for load, own in zip(self.fetched, registers, strict=True):
            for i, column in enumerate(self._own(lane)):
                at = self.env(self._of_column(corner, corner[self.view.n] + column))
                T.buffer_store(own, Rebuild(at, None, self.buffers)(load), [i])

    def share(self, registers: list[Any], shared: list[Any], base: Any, lane: Any) -> None:
        """Hand what `fetch` loaded to all threads of a consumer, from `base` on."""
        for own, there in zip(registers, shared, strict=True):
            for i, column in enumerate(self._own(lane)):
                T.buffer_store(there, own[i], [base + column])

    def _own(self, lane: Any) -> list[Any]:
        """Columns of a thread; the last ones several times, where there are fewer than threads."""
        width = self.tiling.stored_columns
        inside = width % _THREADS == 0
        return [lane + i if inside else tirx.min(lane + i, width - 1) for i in range(0, width, _THREADS)]

    def computed(self, value: Any, at: dict[int, Any], loaded: dict[Any, Any]) -> Any:
        """What the epilogue makes of one element, before it is rounded to what is stored."""
        value = value.astype("float32") if self.dtype in NARROW else value
        return Rebuild(self.env(at), {self.first: value, **loaded}, self.buffers)(self.epilogue.value)

    def stored(self, value: Any, at: dict[int, Any], column: Any, loaded: dict[Any, Any], words: Any) -> Any:
        """What is stored for one element; `words`: registers of bytes, for `permuted`."""
        made = self.computed(value, {**at, self.view.n: column}, loaded).astype(self.epilogue.dtype)
        return permuted(made, words)

    def loaded(self, registers: Sequence[Any], at: Any) -> dict[Any, Any]:
        """The values of the wide loads, of which `registers` have an element at `at`."""
        return {
            load: local[at].astype("float32") if str(load.source.dtype) in NARROW else local[at]
            for load, local in zip(self.wide, registers, strict=True)
        }

    def shared_at(self, shared: Sequence[Any], at: Any) -> dict[Any, Any]:
        """The values of what was fetched for what follows the exchange."""
        if not shared or not self.late:
            return {}
        begin = len(self.fetched) - self.late
        return dict(zip(self.fetched[begin:], [there[at] for there in shared[begin:]], strict=True))

    def index(self, indices: Any, at: dict[int, Any]) -> list[Any]:
        return [Rebuild(self.env(at))(i) for i in indices]

    def _of_row(self, corner: dict[int, Any], row: Any) -> dict[int, Any]:
        at = dict(corner)
        for g, rows in reversed(list(zip(self.view.rows, self.tiling.rows, strict=True))):
            at[g] = corner[g] + (row % rows if g != self.view.rows[0] else row)
            row = row // rows
        return at

    def inside(self, at: dict[int, Any], column: Any) -> Any:
        """True, or the condition under which the elements are the tile's own."""
        view, ragged = self.view, self.walk.ragged()
        conditions = [at[g] < view.groups[g].extent for g in view.rows if g in ragged]
        conditions += [column < view.extent(view.n)] if view.n in ragged else []
        return tirx.all(*conditions) if conditions else True

    def place(self, corner: dict[int, Any], first: Any, chunk: Any, turn: Any, lane: Any) -> tuple[Any, Any, Any]:
        """Of a thread's vector: where it was staged, the rows' indices, and the column in the output."""
        where, row, column = self.exchange.place(chunk, turn, lane)
        # codegen vectorises a load only where it sees in the index itself that it is aligned
        begin = corner[self.view.n] // self.vector * self.vector
        return where, bound(self._of_row(corner, first + row)), begin + column

    def load_wide(self, into: list[Any], base: Any, at: dict[int, Any], column: Any) -> None:
        for load, local in zip(self.wide, into, strict=True):
            with T.vectorized(self.vector) as v:
                where = self.index(load.indices, {**at, self.view.n: column + v})
                T.buffer_store(local, tirx.BufferLoad(self.buffers[load.source], where), [base + v])

    def load_ahead(self, corner: dict[int, Any], first: Any, lane: Any) -> list[Any]:
        """Begin the wide loads of the first chunks: registers for each of `wide`, none where there is no room."""
        size = self.ahead * self.turns * self.vector
        held = [T.alloc_local((size,), str(load.source.dtype)) for load in self.wide if size]
        for chunk in range(self.ahead):
            for turn in range(self.turns):
                self._load(held, corner, first, chunk, turn, lane)
        return held

    def load_next(
        self, held: list[Any], corners: tuple[Any, Any], first: Any, chunk: Any, turn: Any, lane: Any
    ) -> None:
        """Where a vector was held that has been stored: the same of the chunk that comes next in its place."""
        corner, after = corners
        later = chunk + self.ahead
        if self.ahead == self.chunks:
            if after is not None:
                self._load(held, after, first, chunk, turn, lane)
            return
        with T.If(later < self.chunks):
            with T.Then():
                self._load(held, corner, first, later, turn, lane)
            if after is not None:
                with T.Else():
                    self._load(held, after, first, later - self.chunks, turn, lane)

    def take(self, into: list[Any], held: Sequence[Any], chunk: Any, turn: Any) -> None:
        """A vector of each of what is held."""
        for local, registers in zip(into, held, strict=True):
            self.read(local, registers, self.held_at(chunk, turn))

    def read(self, into: Any, registers: Any, at: Any) -> None:
        """A vector, whole: where its halves are read one by one, each takes a register from the load on."""
        with T.vectorized(self.vector) as v:
            T.buffer_store(into, registers[at + v], [v])

    def held_at(self, chunk: Any, turn: Any) -> Any:
        """Where a vector of a chunk is in what is held."""
        return (chunk % self.ahead * self.turns + turn) * self.vector

    def _load(self, held: list[Any], corner: dict[int, Any], first: Any, chunk: Any, turn: Any, lane: Any) -> None:
        """Of rows past the last one, the last one's: a compiler waits for what is loaded on a condition."""
        _, at, column = self.place(corner, first, chunk, turn, lane)
        view, ragged = self.view, self.walk.ragged()
        rows = {g: tirx.min(at[g], view.groups[g].extent - 1) for g in view.rows if g in ragged}
        with ExitStack() as condition:
            if view.n in ragged:  # not the last columns again: of these the compiler sees no alignment
                condition.enter_context(T.If(column < view.extent(view.n)))
                condition.enter_context(T.Then())
            self.load_wide(held, self.held_at(chunk, turn), bound(at | rows), column)

    # long: one piece of a kernel in TVMScript, whose steps share the thread's rows and columns
    def emit(
        self, sums: Any, staging: Any, corner: dict[int, Any], first: Any, consumer: Any, lane: Any, rows: int,
        held: Sequence[Any] = (), shared: Sequence[Any] = (), base: Any = 0, after: dict[int, Any] | None = None,
    ) -> None:  # fmt: skip
        """Store `rows` rows of the tile at `corner`, from `first` on; `lane`: the consumer's thread of 128.

        `held` is what `load_ahead` began, and is left so for the tile at `after`. `shared` has what was fetched, from
        `base` on.
        """
        vector, exchange, n, out = self.vector, self.exchange, self.view.n, self.buffers[self.epilogue.out]
        ahead, turns, chunks = self.ahead if held else 0, self.turns, exchange.chunks(rows)
        is_plain = self.first is self.epilogue.value
        each = T.vectorized if vector * dtype_bits(self.dtype) <= _ACCESS_BITS else T.unroll

        def indices(at: dict[int, Any], column: Any) -> list[Any]:
            return self.index(self.epilogue.indices, {**at, n: column})

        ready = exchange.ready(shared, base, lane)

        def known(others: Sequence[Any], v: Any, column: Any) -> dict[Any, Any]:
            return self.loaded(others, v) | self.shared_at(shared, base + (column - corner[n]))

        def staged(i: Any, in_tile: Any, own: Any) -> Any:
            return self.staged(sums[i], corner, corner[n] + in_tile, ready(in_tile, own), self.of_sum(i))

        # fmt: off
        @T.inline
        def body() -> None:
            own_base: T.let[T.int32] = exchange.base(consumer, lane)
            eight = T.alloc_local((8,), self.dtype)
            values = T.alloc_local((vector,), self.dtype)
            others = T.meta_var([T.alloc_local((vector,), str(load.source.dtype)) for load in self.wide])
            results = T.alloc_local((vector,), self.epilogue.dtype)
            words = T.meta_var(words_of([values, *others]))
            there = T.meta_var(exchange.there(staging))
            for chunk in T.unroll(chunks):
                exchange.put(staged, eight, there, own_base, chunk, lane)
                exchange.meet(consumer)
                for turn in T.unroll(turns):
                    where, at, column = T.meta_var(self.place(corner, first, chunk, turn, lane))
                    if self.inside(at, column):
                        for v in each(vector):
                            values[v] = there[own_base + where + v]
                        if is_plain:
                            for v in T.vectorized(vector):
                                T.buffer_store(out, values[v], indices(at, column + v))
                        else:
                            if ahead == 0:
                                self.load_wide(others, 0, at, column)
                            else:
                                self.take(others, held, chunk, turn)
                            for v in T.unroll(vector):
                                results[v] = self.stored(values[v], at, column + v, known(others, v, column + v), words)
                            for v in T.vectorized(vector):
                                T.buffer_store(out, results[v], indices(at, column + v))
                        self.store_copies(values if is_plain else results, at, column)
                    self.end_vector(values if is_plain else results, chunk, turn)
                    if ahead > 0:
                        self.load_next(list(held), (corner, after), first, chunk, turn, lane)
                self.end_chunk(corner, first, chunk, lane)
                exchange.leave()
            exchange.part(consumer, chunks)
        # fmt: on

        body()


def wide_dtype(load: Any) -> str:
    """Of a loaded element in registers."""
    dtype = str(load.source.dtype)
    return "float32" if dtype in NARROW else dtype
