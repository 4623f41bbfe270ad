"""TopK, sorting and arg-sorting along an axis: rows side by side in vectors, selected from, or sorted one by one.

Few results of many rows: a vector holds one element of each of several rows, and every element sinks through the rows'
best ones. More results: blocks of a row that hold nothing better than the worst of the best so far are passed over, of
the others everything better is gathered, and sorted now and then. Of shorter rows parts are sorted, and of every part
the best are kept beside those before. Else a row is sorted (`network`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.math.horizontal import is_any
from subtune.backends.cpu.operators.network import comparisons, comparisons_to_keep, keep_least, sort_in_place
from subtune.tir.blocks import written
from subtune.tir.statements import (
    buffer,
    in_vectors,
    integer,
    load,
    parallel,
    sequence,
    serial,
    store,
    unrolled,
    vectorized,
)

KEYS = frozenset(("int8", "int16", "int32", "uint8", "uint16"))
"""Types whose values leave 32 bits for a place."""
_SINKING = 16
"""Results that are kept in registers, for as many rows as a vector has lanes."""
_BLOCK = 64
_LEAST_GATHERED = 256
_SELECTED = 4
"""Rows are selected from where they are so many times longer than what is gathered."""
_LAST = (1 << 63) - 1
Computed = Callable[[Any], Any]
"""From an expression of an element to one."""
_Row = tuple[Any, Any]
"""Where a row lies: outside of its axis and inside."""


@dataclass(frozen=True, slots=True)
class Sorted:
    """The first `count` elements of the rows of an array [outer, length, inner], in their order.

    The elements, of `dtype`, are what `computed` makes of those in memory, of `given_dtype` where that is another.
    """

    dtype: str
    shape: tuple[int, int, int]
    count: int
    largest: bool
    outputs: tuple[str, ...]
    """`values` and `places`, or one of them."""
    place_dtype: str
    given_dtype: str = ""
    computed: Computed = lambda element: element

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[2]

    @property
    def length(self) -> int:
        return self.shape[1]


def sorted_function(op: Sorted, device: CPUModel) -> Any:
    """The PrimFunc of the operator: its argument, then its outputs."""
    outer, _, inner = op.shape
    types = [op.dtype if name == "values" else op.place_dtype for name in op.outputs]
    given = buffer("x", op.shape, dtype=op.given_dtype or op.dtype)
    made = [buffer(name, (outer, op.count, inner), dtype=dtype) for name, dtype in zip(op.outputs, types, strict=True)]
    writer = _Writer(op, device.lanes(64), device.lanes(), given, made)
    body = writer.sunk() if writer.sinks else parallel(op.rows, writer.row)
    root = SBlock([], [], [], "root", written("rows", body), None, [])
    func = tirx.PrimFunc([given, *made], SBlockRealize([], True, root))
    return func.with_attrs({"tirx.noalias": True, "op_pattern": 8, "s_tir": True})


class _Writer:
    def __init__(self, op: Sorted, lanes: int, key_lanes: int, given: Any, made: list[Any]):
        self._op, self._lanes, self._key_lanes, self._given, self._made = op, lanes, key_lanes, given, made

    @property
    def sinks(self) -> bool:
        return self._op.count <= _SINKING and self._op.rows >= self._lanes > 1 and not self._inserts

    @property
    def _inserts(self) -> bool:
        """Of long rows that lie apart, blocks are passed over: an element of each would be a line of memory of each."""
        op = self._op
        return op.count <= _SINKING and op.shape[2] < self._lanes and op.length >= _SELECTED * _LEAST_GATHERED

    # -- rows side by side

    def sunk(self) -> Any:
        """The loop over groups of rows; the last one overlaps its neighbour, and computes the same."""
        op, lanes, count = self._op, self._lanes, self._op.count
        best = buffer("best", [count, lanes], "local", "int64")
        sinking = buffer("sinking", [2, lanes], "local", "int64")

        outer, _, inner = op.shape
        tiles = -(-inner // lanes)
        is_beside = inner >= lanes  # one element of each row is one vector of memory

        def group(number: Any) -> Any:
            if is_beside:
                tile = tirx.floormod(number, integer(tiles)) * integer(lanes)
                first = tirx.floordiv(number, integer(tiles)), tirx.Min(tile, integer(inner - lanes))
            else:
                first = tirx.Min(number * integer(lanes), integer(op.rows - lanes)), integer(0)

            def at(lane: Any) -> _Row:
                return (first[0], first[1] + lane) if is_beside else self._at(first[0] + lane)

            def element(place: Any) -> Any:
                begin = vectorized(
                    lanes, lambda lane: store(sinking, self._pair(self._key(at(lane), place), place), 0, lane)
                )
                return sequence(begin, *(sink(rank) for rank in range(count)))

            def sink(rank: int) -> Any:
                now, after = rank % 2, (rank + 1) % 2

                def body(lane: Any) -> Any:
                    here, other = load(best, rank, lane), load(sinking, now, lane)
                    return sequence(
                        store(sinking, tirx.Max(here, other), after, lane),
                        store(best, tirx.Min(here, other), rank, lane),
                    )

                return vectorized(lanes, body)

            clear = unrolled(count, lambda rank: vectorized(lanes, lambda lane: store(best, _last(), rank, lane)))
            results = unrolled(
                count, lambda rank: serial(lanes, lambda lane: self._put(at(lane), rank, load(best, rank, lane)))
            )
            return written("group", sequence(clear, serial(op.length, element), results), [best, sinking])

        return parallel(outer * tiles if is_beside else -(-op.rows // lanes), group)

    # -- row by row

    def row(self, number: Any) -> Any:
        op, row = self._op, self._at(number)
        if self._inserts:
            return self._inserted(row)
        gathered = max(_LEAST_GATHERED, _power(4 * op.count))
        if op.length >= _SELECTED * gathered:
            return self._selected(row, gathered)
        part = max(_power(op.count), self._lanes)
        parts, left = divmod(op.length, part)
        merged = parts * (comparisons(part) + comparisons_to_keep(part))
        merged += comparisons(_power(left)) + comparisons_to_keep(part) if left else 0
        return self._merged(row, part) if merged < comparisons(_power(op.length)) else self._whole(row)

    def _whole(self, row: _Row) -> Any:
        op, size = self._op, _power(self._op.length)
        pairs = self._pairs(size)
        parts = [self._copied(pairs, row, integer(0), op.length, integer(0))]
        if size > op.length:
            parts.append(in_vectors(size - op.length, self._lanes, lambda i: store(pairs, _last(), i + op.length)))
        results = serial(op.count, lambda rank: self._put(row, rank, load(pairs, rank)))
        return written("row", sequence(*parts, sort_in_place(pairs, size, self._lanes), results), [pairs])

    def _merged(self, row: _Row, size: int) -> Any:
        """Parts of `size` pairs are sorted one by one; the best so far and those of the next part become the best."""
        op, lanes = self._op, self._lanes
        best, coming = self._pairs(size), self._pairs(size)

        def part(first: Any, extent: int) -> Any:
            sorts = _power(extent)
            stmts = [self._copied(coming, row, first, extent, integer(0))]
            if size > extent:
                stmts.append(in_vectors(size - extent, lanes, lambda i: store(coming, _last(), i + extent)))
            if sorts > 1:
                stmts.append(sort_in_place(coming, sorts, lanes))
            return sequence(*stmts, keep_least(best, coming, size, lanes))

        whole, rest = divmod(op.length, size)
        parts = [in_vectors(size, lanes, lambda i: store(best, _last(), i))]
        parts += [serial(whole, lambda number: part(number * integer(size), size))]
        parts += [part(integer(whole * size), rest)] if rest else []
        results = serial(op.count, lambda rank: self._put(row, rank, load(best, rank)))
        return written("row", sequence(*parts, results), [best, coming])

    def _inserted(self, row: _Row) -> Any:
        """The few best in order, into which every better element is put at its place."""
        op, ranks = self._op, range(self._op.count)
        best = buffer("best", [op.count], "local", "int64")
        sinking = buffer("sinking", [op.count + 1], "local", "int64")
        keys = buffer("keys", [self._key_lanes], "local", "int32")
        limit = load(best, op.count - 1)

        def put(place: Any) -> Any:
            pair = self._pair(self._key(row, place), place)
            sunk = [stmt for rank in ranks for stmt in (
                store(sinking, tirx.Max(load(best, rank), load(sinking, rank)), rank + 1),
                store(best, tirx.Min(load(best, rank), load(sinking, rank)), rank))]  # fmt: skip
            is_better = load(sinking, 0) < limit
            return sequence(store(sinking, pair, 0), tirx.IfThenElse(is_better, sequence(*sunk), None))

        begin = [store(best, _last(), rank) for rank in ranks]
        results = [self._put(row, rank, load(best, rank)) for rank in ranks]
        blocks = self._blocks(keys, row, limit, put)
        return written("row", sequence(*begin, *blocks, *results), [best, sinking, keys])

    def _selected(self, row: _Row, size: int) -> Any:
        """Everything better than `limit` is gathered, `held` pairs so far; when there is no room it is sorted."""
        op = self._op
        pairs = self._pairs(size)
        held, limit = buffer("held", [1], "local", "int64"), buffer("limit", [1], "local", "int64")
        keys = buffer("keys", [self._key_lanes], "local", "int32")

        def gather(place: Any) -> Any:
            pair = self._pair(self._key(row, place), place)
            is_better = tirx.Cast("int64", load(pairs, load(held, 0)) < load(limit, 0))
            return sequence(store(pairs, pair, load(held, 0)), store(held, load(held, 0) + is_better, 0))

        def tidy() -> Any:
            rest = serial(integer(size) - load(held, 0), lambda i: store(pairs, _last(), load(held, 0) + i))
            return sequence(rest, sort_in_place(pairs, size, self._lanes))

        cut = sequence(tidy(), store(limit, load(pairs, op.count - 1), 0), store(held, integer(op.count), 0))
        full = tirx.IfThenElse(load(held, 0) > integer(size - _BLOCK), cut, None)
        blocks = self._blocks(keys, row, load(limit, 0), gather, full)
        results = serial(op.count, lambda rank: self._put(row, rank, load(pairs, rank)))
        begin = [store(held, integer(0), 0), store(limit, _last(), 0)]
        return written("row", sequence(*begin, *blocks, tidy(), results), [pairs, held, limit, keys])

    def _blocks(
        self, keys: Any, row: _Row, limit: Any, each: Callable[[Any], Any], behind: Any | None = None
    ) -> list[Any]:
        """Statements: `each` of the places of a row, without vectors that hold nothing better than the pair `limit`.

        What comes later is no better than what is equal to it. `behind`: what follows every block that is looked into.
        """
        lanes = self._key_lanes
        is_open = limit == _last()

        def is_better(first: Any, extent: int) -> tuple[Any, Any]:
            """Statements, and whether something is better in a stretch of vectors from `first` on."""
            best = self._best(keys, row, first, extent)
            vector = tirx.BufferLoad(keys, [tirx.Ramp(integer(0), integer(1), lanes)])
            bound = tirx.Cast("int32", tirx.shift_right(limit, integer(32)))
            return best, tirx.any(is_open, is_any(vector < tirx.Broadcast(bound, lanes)))

        def vector(first: Any) -> Any:
            best, condition = is_better(first, lanes)
            scan = serial(lanes, lambda lane: each(first + lane))
            return sequence(*best, tirx.IfThenElse(condition, scan, None))

        def block(first: Any) -> Any:
            best, condition = is_better(first, _BLOCK)
            vectors = serial(_BLOCK // lanes, lambda i: vector(first + i * integer(lanes)))
            taken = vectors if behind is None else sequence(vectors, behind)
            return sequence(*best, tirx.IfThenElse(condition, taken, None))

        whole, rest = divmod(self._op.length, _BLOCK)
        blocks = [serial(whole, lambda i: block(i * integer(_BLOCK)))]
        return [*blocks, serial(rest, lambda i: each(integer(whole * _BLOCK) + i))] if rest else blocks

    def _best(self, keys: Any, row: _Row, first: Any, extent: int) -> list[Any]:
        """Statements that put the best key of every lane into `keys`."""
        lanes = self._key_lanes
        stmts = []
        for at in range(0, extent, lanes):

            def body(lane: Any, at: int = at) -> Any:
                key = self._key(row, first + integer(at) + lane)
                return store(keys, tirx.Min(load(keys, lane), key) if at else key, lane)

            stmts.append(vectorized(lanes, body))
        return stmts

    # -- elements

    def _copied(self, pairs: Any, row: _Row, first: Any, extent: int, at: Any) -> Any:
        def pair(i: Any) -> Any:
            return store(pairs, self._pair(self._key(row, first + i), first + i), at + i)

        return in_vectors(extent, self._lanes, pair)

    def _at(self, row: Any) -> _Row:
        inner = integer(self._op.shape[2])
        return tirx.floordiv(row, inner), tirx.floormod(row, inner)

    def _key(self, row: _Row, place: Any) -> Any:
        """What elements are ordered by, the smallest first, in int32."""
        key = tirx.Cast("int32", self._element(row, place))
        return tirx.const(-1, "int32") - key if self._op.largest else key

    def _element(self, row: _Row, place: Any) -> Any:
        return self._op.computed(load(self._given, row[0], place, row[1]))

    def _pair(self, key: Any, place: Any) -> Any:
        return tirx.Cast("int64", key) * integer(1 << 32) + place

    def _put(self, row: _Row, rank: Any, pair: Any) -> Any:
        outer, at = row
        place = tirx.bitwise_and(pair, integer((1 << 32) - 1))
        values: dict[str, Callable[[], Any]] = {
            "values": lambda: self._element(row, place),
            "places": lambda: tirx.Cast(self._op.place_dtype, place),
        }
        return sequence(
            *(store(made, values[name](), outer, rank, at)
              for name, made in zip(self._op.outputs, self._made, strict=True))
        )  # fmt: skip

    def _pairs(self, size: int) -> Any:
        return buffer("pairs", [size], "local" if size * 8 <= 16384 else "global", "int64")


def _last() -> Any:
    """After all others."""
    return integer(_LAST)


def _power(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << (count - 1).bit_length()
