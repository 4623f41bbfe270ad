"""A reduction whose outer runs are reduced: a table of partial results in the cache, added to row by row of memory.

    for kept runs outside, tiles of what is kept inside, pieces of the outermost reduced run (parallel):
      for the other runs as they lie in memory:  `unroll` rows at a time:  table[columns] = all of them together
    what pieces have in common, and what is reduced among the columns

Columns are the innermost kept run; with a short reduced one behind it, both: they are reduced in the table, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from subtune.backends.cpu.families.partials.pieces import Places, Shares, count, put, unfolded, value_at
from subtune.patterns.runs import Run
from subtune.patterns.strided import Strided
from subtune.tir.blocks import written
from subtune.tir.statements import buffer, in_vectors, integer, load, sequence, serial, store

_STACK_BYTES = 16384
_SERIAL = 4096
"""Results that one thread puts together."""


class Table:
    """Writes one reduction.

    Args:
        unroll: rows that are added at a time.
        tile: positions on the outermost kept run inside of the reduced ones, at most its extent.
    """

    def __init__(self, found: Strided, unroll: int, tile: int, lanes: int, shares: Shares):
        self._found, self._unroll, self._tile, self._lanes, self._shares = found, unroll, tile, lanes, shares
        first = next(i for i, run in enumerate(found.runs) if run.is_reduced)
        inside = list(found.runs[first:])
        self._lead = list(found.runs[:first])
        self._short = inside.pop() if inside[-1].is_reduced else None
        self._columns = inside.pop()
        self._inside = inside
        self._kept = [*(run for run in inside if not run.is_reduced), self._columns]
        self._tiled = self._kept[0]
        self.buffers: list[Any] = []

    @property
    def _each(self) -> int:
        """Columns for one position on their run."""
        return self._short.extent if self._short is not None else 1

    def _shape(self) -> list[int]:
        """Of a table."""
        sizes = [self._tile if run is self._tiled else run.extent for run in self._kept]
        sizes[-1] *= self._each
        return sizes

    def stages(self) -> list[Any]:
        name, pieces, lead = self._found.block.name_hint, self._shares.pieces, count(self._lead)
        tiles = -(-self._tiled.extent // self._tile)
        shape = self._shape()
        if pieces > 1:
            tables = buffer(f"{name}_partial", [pieces, lead, tiles, *shape], dtype=self._found.dtype)
            self.buffers.append(tables)

        def grain(number: Any) -> Any:
            piece, rest = tirx.floordiv(number, integer(lead * tiles)), tirx.floormod(number, integer(lead * tiles))
            outer, tile = tirx.floordiv(rest, integer(tiles)), tirx.floormod(rest, integer(tiles))
            places = unfolded(self._lead, outer)
            if pieces > 1:
                return sequence(*self._filled(tables, [piece, outer, tile], places, self._start(tile), piece))
            scope = "local" if _bytes(shape, self._found.dtype) <= _STACK_BYTES else "global"
            table = buffer("table", shape, scope, self._found.dtype)
            body = self._filled(table, [], places, self._start(tile), piece)
            results = self._results(places, self._start(tile), lambda *at: load(table, *at))
            return written(f"{name}_tile", sequence(*body, results), [table])

        found = [written(name if pieces == 1 else f"{name}_parts", self._shares.each(pieces * lead * tiles, grain))]
        if pieces == 1:
            return found

        def whole(number: Any) -> Any:
            outer, tile = tirx.floordiv(number, integer(tiles)), tirx.floormod(number, integer(tiles))

            def together(*at: Any) -> Any:
                total = load(tables, 0, outer, tile, *at)
                for piece in range(1, pieces):
                    total = self._found.combine(total, load(tables, piece, outer, tile, *at))
                return total

            return self._results(unfolded(self._lead, outer), self._start(tile), together)

        is_long = lead * tiles > 1 and lead * tiles * count(self._kept) > _SERIAL
        return [
            *found,
            written(name, self._shares.each(lead * tiles, whole) if is_long else serial(lead * tiles, whole)),
        ]

    def _start(self, tile: Any) -> Any:
        """The first position of a tile; the last one overlaps its neighbour, and computes the same."""
        return tirx.min(tile * integer(self._tile), integer(self._tiled.extent - self._tile))

    def _places(self, positions: list[Any], start: Any) -> dict[Run, Any]:
        """Of a table's element."""
        *others, column = positions
        places = dict(zip(self._kept[:-1], others, strict=True))
        if self._tiled is not self._columns:
            places[self._tiled] = places[self._tiled] + start
        else:
            column = column + start * integer(self._each)
        places[self._columns] = tirx.floordiv(column, integer(self._each)) if self._short is not None else column
        if self._short is not None:
            places[self._short] = tirx.floormod(column, integer(self._each))
        return places

    def _filled(self, table: Any, head: list[Any], lead: Places, start: Any, piece: Any) -> list[Any]:
        """Statements that clear a table and fill it."""
        found = self._found

        def clear(*at: Any) -> Any:
            return store(table, found.identity, *head, *at)

        def along(runs: list[Run], places: Places, positions: list[Any]) -> Any:
            run, *others = runs
            begin, end = integer(0), integer(self._tile if run is self._tiled else run.extent)
            if run is self._inside[0]:
                begin, end = self._shares.range_of(piece, run.extent)
            if others:
                more = [] if run.is_reduced else [0]

                def body(i: Any) -> Any:
                    return along(others, {**places, run: begin + i}, [*positions, *(i for _ in more)])

                return serial(end - begin, body)
            return self._rows(table, head, run, (begin, end), places, positions, start)

        return [self._over(clear), along(self._inside, lead, [])]

    def _rows(
        self, table: Any, head: list[Any], run: Run, bounds: tuple[Any, Any], places: Places, positions: list[Any],
        start: Any,
    ) -> Any:  # fmt: skip
        """Rows of one reduced run added to the table's columns, some at a time."""
        found, (begin, end) = self._found, bounds

        def added(first: Any, rows: int) -> Any:
            def column(c: Any) -> Any:
                at = self._places([*positions, c], start)
                terms = [value_at(found, {**places, **at, run: first + integer(i)}) for i in range(rows)]
                while len(terms) > 1:
                    pairs = zip(terms[::2], terms[1::2], strict=False)
                    terms = [found.combine(a, b) for a, b in pairs] + (terms[-1:] if len(terms) % 2 else [])
                return store(table, found.combine(load(table, *head, *positions, c), terms[0]), *head, *positions, c)

            return in_vectors(self._shape()[-1], self._lanes, column)

        extent, unroll = end - begin, integer(self._unroll)
        whole = tirx.floordiv(extent, unroll)
        parts = [serial(whole, lambda i: added(begin + i * unroll, self._unroll))]
        if self._unroll > 1:
            parts.append(serial(extent - whole * unroll, lambda i: added(begin + whole * unroll + i, 1)))
        return sequence(*parts)

    def _over(self, body: Callable[..., Any]) -> Any:
        """`body(*positions)` for all of a table."""
        *outer, columns = self._shape()

        def along(extents: list[int], positions: list[Any]) -> Any:
            if extents:
                return serial(extents[0], lambda i: along(extents[1:], [*positions, i]))
            return in_vectors(columns, self._lanes, lambda c: body(*positions, c))

        return along(outer, [])

    def _results(self, lead: Places, start: Any, table: Callable[..., Any]) -> Any:
        """The statement that stores what a table holds; `table` gives an element."""
        found, each = self._found, self._each
        if self._short is None:
            return self._over(lambda *at: put(found, table(*at), {**lead, **self._places(list(at), start)}))
        total = buffer("total", [1], "local", found.dtype)
        *outer, columns = self._shape()

        def along(extents: list[int], positions: list[Any]) -> Any:
            if extents:
                return serial(extents[0], lambda i: along(extents[1:], [*positions, i]))
            *others, last = positions
            first = last * integer(each)

            def add(i: Any) -> Any:
                return store(total, found.combine(load(total, 0), table(*others, first + i)), 0)

            at = self._places([*others, first], start)
            kept = {run: index for run, index in at.items() if not run.is_reduced}
            return sequence(
                store(total, found.identity, 0), serial(each, add), put(found, load(total, 0), {**lead, **kept})
            )

        return written(f"{found.block.name_hint}_folded", along([*outer, columns // each], []), [total])


def _bytes(shape: list[int], dtype: str) -> int:
    size = tirx.decl_buffer([1], dtype).dtype.itemsize
    for extent in shape:
        size *= extent
    return size
