"""Storing tiles with numbers of their rows, and with moments of what is stored.

    x = epilogue(sums, numbers)            as `wgmma.store` has it; in registers of sums the numbers of their rows
    means[row, g] = mean of x              over 64 columns, among the threads that have a row of a chunk
    squares[row, g] = sum of (x - mean)^2

A chunk of float32 has half of the columns: two of them are put together. Moments are of a thread's elements first, then
of ever more: sums of squares alone would lose what a row with a large mean varies by. (Chan, Golub and LeVeque:
Updating formulae and a pairwise algorithm for computing sample variances.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import tirx
from tvm.script import tirx as T
from tvm.tirx.op import tvm_warp_shuffle_xor

from subtune.backends.cuda.families.wgmma.store import SPARE_REGISTERS, Store
from subtune.backends.cuda.source.emit import FULL_WARP
from subtune.core.numerics import HALVES
from subtune.tir.row_moments import COLUMNS

_THREADS, _ROWS = 8, 4  # that have a row of a chunk; of a thread in a chunk
_HALVES = 2
_EACH = COLUMNS // _THREADS  # elements of a thread in 64 columns


@dataclass(frozen=True, slots=True)
class RowStore(Store):
    """`numbers`: the epilogue's variables for those of a row. `means` and `squares`: buffers, or None.

    The rest belongs to one tile: `registers` and `shared` have its numbers, of the rows that a thread multiplies and of
    all, from `base` on; `corner` is where it is; `kept` has moments of what a thread has stored of 64 columns.
    """

    numbers: tuple[Any, ...]
    means: Any
    squares: Any
    registers: Sequence[Any] = ()
    shared: Sequence[Any] = ()
    base: Any = 0
    corner: dict[int, Any] = field(default_factory=dict)
    kept: Sequence[Any] = ()

    def of_tile(self, registers: Sequence[Any], shared: Sequence[Any], base: Any, corner: dict[int, Any]) -> RowStore:
        """The same, with the numbers of a tile."""
        return replace(self, registers=registers, shared=shared, base=base, corner=corner)

    def emit(self, *given: Any, **named: Any) -> None:
        kept = [T.alloc_local((2 * _ROWS * self._parts,), "float32")] if self.means is not None else []
        Store.emit(replace(self, kept=kept), *given, **named)

    def env(self, at: dict[int, Any]) -> dict[Any, Any]:
        found = Store.env(self, at)
        (rows,) = self.view.rows
        if self.shared and rows in at and rows in self.corner:
            row = self.base + (at[rows] - self.corner[rows])
            found |= {var: there[row] for var, there in zip(self.numbers, self.shared, strict=True)}
        return found

    def of_sum(self, index: Any) -> dict[Any, Any]:
        per_64 = self.tiling.multiplied[1] // 2
        row = index // per_64 * 2 + index % 4 // 2
        return {var: own[row] for var, own in zip(self.numbers, self.registers, strict=False)}

    @property
    def spare_registers(self) -> int:
        kept = 2 * _ROWS * self._parts if self.means is not None else 0
        return self.tiling.spare_registers - SPARE_REGISTERS - kept

    @property
    def _parts(self) -> int:
        """Chunks that have 64 columns."""
        return _EACH // self.vector

    def end_vector(self, values: Any, chunk: Any, turn: Any) -> None:
        if self.means is None:
            return
        (kept,) = self.kept
        at = (chunk % self._parts * _ROWS + turn) * 2
        wide = T.alloc_local((self.vector,), "float32")
        T.buffer_store(kept, T.float32(0), [at])
        with T.unroll(self.vector) as v:
            T.buffer_store(wide, values[v].astype("float32"), [v])
            T.buffer_store(kept, kept[at] + wide[v], [at])
        T.buffer_store(kept, kept[at] * T.float32(1 / self.vector), [at])
        T.buffer_store(kept, T.float32(0), [at + 1])
        with T.unroll(self.vector) as v:
            away = wide[v] - kept[at]
            T.buffer_store(kept, kept[at + 1] + away * away, [at + 1])

    def end_chunk(self, corner: dict[int, Any], first: Any, chunk: Any, lane: Any) -> None:
        if self.means is None:
            return
        if self._parts == 1:
            self._moments(corner, first, chunk, lane)
        else:
            with T.If(chunk % self._parts == self._parts - 1), T.Then():
                self._moments(corner, first, chunk, lane)

    def _moments(self, corner: dict[int, Any], first: Any, chunk: Any, lane: Any) -> None:
        """Of the rows that a thread has parts of, to memory: every other thread writes those of one row."""
        (kept,) = self.kept
        left = [(kept[row * 2], kept[row * 2 + 1]) for row in range(_ROWS)]
        if self._parts == _HALVES:
            others = [(kept[(_ROWS + row) * 2], kept[(_ROWS + row) * 2 + 1]) for row in range(_ROWS)]
            left = [_both(one, other, self.vector) for one, other in zip(left, others, strict=True)]
        mean, squares = _own_moments(left, lane)
        (rows,) = self.view.rows
        _, own, column = self.exchange.place(chunk, lane % _THREADS // (_THREADS // _ROWS), lane)
        at = {**corner, rows: corner[rows] + (first + own)}
        row, _ = self.index(self.epilogue.indices, at)
        group = (corner[self.view.n] + column) // COLUMNS
        inside = self.inside(at, corner[self.view.n] + column)
        is_first = tirx.EQ(lane % (_THREADS // _ROWS), 0)
        with T.If(is_first if inside is True else tirx.all(is_first, inside)), T.Then():
            T.buffer_store(self.means, mean, [row, group])
            T.buffer_store(self.squares, squares, [row, group])


_Moments = tuple[Any, Any]
"""Mean, and sum of the squares of what the elements are away from it."""


def _both(one: _Moments, other: _Moments, count: int) -> _Moments:
    """Of two sets of `count` elements each, together."""
    apart = T.Bind(other[0] - one[0])
    mean = T.Bind((one[0] + other[0]) * T.float32(0.5))
    return mean, T.Bind(one[1] + other[1] + apart * apart * T.float32(count / 2))


def _own_moments(rows: Sequence[_Moments], lane: Any) -> _Moments:
    """Of `rows`, each over the `_THREADS` neighbours that have a row: every other thread has those of another.

    Each step halves the rows that a thread has: it hands over those that the other one keeps.
    """
    left, offset, count = list(rows), _THREADS // 2, _EACH
    while offset:
        half = len(left) // 2
        if half:
            is_upper = tirx.EQ(lane // offset % 2, 1)
            kept, sent = (
                [
                    tuple(T.Bind(tirx.Select(is_upper, *pair)) for pair in zip(*rows_of, strict=True))
                    for rows_of in order
                ]
                for order in (zip(left[half:], left[:half], strict=True), zip(left[:half], left[half:], strict=True))
            )
        else:
            kept, sent = left, left
        others = [tuple(_exchanged(value, offset) for value in moments) for moments in sent]
        left = [_both(one, other, count) for one, other in zip(kept, others, strict=True)]
        offset, count = offset // 2, 2 * count
    return left[0]


def _exchanged(value: Any, offset: int) -> Any:
    return T.Bind(tvm_warp_shuffle_xor(tirx.const(FULL_WARP, "uint32"), value, offset, 32, 32))


def moments_obstacle(store: Store) -> str:
    """Why the threads of a row cannot take moments of `COLUMNS` columns; "" where they can."""
    if store.epilogue.dtype not in HALVES or len(store.epilogue.indices) != 2:
        return "what is stored is no matrix of halves"
    if store.tiling.columns % COLUMNS or store.view.extent(store.view.n) % COLUMNS:
        return f"{store.tiling.columns} columns are no whole {COLUMNS}"
    shape = store.exchange.threads_of_row, store.exchange.turns
    return "" if shape == (_THREADS, _ROWS) and store.vector in (4, 8) else f"rows of {shape[0]} threads"
