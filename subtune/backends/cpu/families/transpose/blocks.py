"""Blocks that are staged before they are turned: as wholes, or while others are turned."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx

from subtune.backends.cpu.families.transpose.tiles import TileWriter, bits, const, moved_as
from subtune.backends.cpu.loops.prefetch import L1, ask
from subtune.core.kernel import NotApplicable
from subtune.patterns.elementwise import Access
from subtune.tir.shuffle import rows_beside, side_by_side
from subtune.tir.statements import named, sequence, serial


def in_blocks(writer: TileWriter, rows: int, columns: int, threads: int) -> Any | NotApplicable:
    """Blocks that are staged: as wholes where `columns` says how wide, else while others are turned."""
    a, b, extents, lanes = writer.info.a, writer.info.b, writer.info.extents, writer.lanes
    if columns and (extents[a] < rows or extents[b] < columns or rows % lanes or columns % lanes):
        return NotApplicable(f"no block of {rows} x {columns} elements in whole vectors")
    if min(extents[a], extents[b]) < lanes:
        return NotApplicable("an axis is shorter than a vector")
    parts = 1 if writer.is_serial else threads
    if columns:
        return _Blocks(writer, rows, columns, 1).one_by_one(parts)
    vectors = min(lanes, 1 << (extents[b] // lanes).bit_length() - 1)
    return _Blocks(writer, min(rows, extents[a] // lanes * lanes), vectors * lanes, 2).overlapped(parts)


class _Blocks:
    """Blocks of the output, rows along `a` and columns along `b`, whose transposed operands are staged a line apart.

    Every part has room for `copies` staged blocks. Those of one part follow one another along the operands' rows.
    """

    def __init__(self, writer: TileWriter, rows: int, columns: int, copies: int) -> None:
        info = writer.info
        self._writer, self._rows, self._columns, self._copies = writer, rows, columns, copies
        self._pitch = columns + writer.lanes
        self._sizes = {info.a: rows, info.b: columns}
        self._counts = {group: extent for group, extent in enumerate(info.extents) if group not in self._sizes}
        self._counts |= {group: -(-info.extents[group] // size) for group, size in self._sizes.items()}
        self._loads = writer.transposed_loads()
        self._staged = [tirx.decl_buffer([const(copies * rows * self._pitch)], moved_as(load.source), f"staged{i}")
                        for i, (load, _) in enumerate(self._loads)]  # fmt: skip

    def one_by_one(self, parts: int) -> Any:
        """Each is staged as a whole, and then turned in tiles half as wide as a vector."""
        lanes, width = self._writer.lanes, self._writer.lanes // 2

        def body(block: Any) -> Any:
            def turn(down: Any, across: Any) -> Any:
                local, turning = self._turned(block, down, across, width)
                return self._writer.realize("tile", turning, local)

            return sequence(
                serial(self._rows, lambda row: sequence(*self._stage(block, row))),
                serial(self._columns // width, lambda across: serial(
                    self._rows // lanes, lambda down: turn(down * lanes, across * width)
                )),
            )  # fmt: skip

        return self._in_parts(parts, lambda first: [], lambda at: named("block", at(0), body))

    def overlapped(self, parts: int) -> Any:
        """Each is staged while the one before it is turned in square tiles, and asked for while that is staged."""
        lanes = self._writer.lanes
        tiles = self._rows // lanes * self._columns // lanes
        each = self._rows // tiles  # rows that are staged while a tile is turned

        def over_rows(tile: Any, action: Callable[[Any], list[Any]]) -> list[Any]:
            return [stmt for i in range(each) for stmt in action(tile * each + i)]

        def begin(first: Any) -> list[Any]:
            return [serial(tiles, lambda tile: sequence(*over_rows(tile, lambda row: self._stage(first, row))))]

        def body(at: Callable[[int], Any]) -> Any:
            def turn(tile: Any) -> Any:
                staging = over_rows(tile, lambda row: [*self._ask_for(at(2), row), *self._stage(at(1), row)])
                down, across = tile % (self._rows // lanes), tirx.floordiv(tile, self._rows // lanes)
                local, turning = self._turned(at(0), down * lanes, across * lanes, lanes)
                return self._writer.realize("tile", [*staging, *turning], local)

            return serial(tiles, turn)

        return self._in_parts(parts, begin, body)

    def _in_parts(
        self, parts: int, begin: Callable[[Any], list[Any]], body: Callable[[Callable[[int], Any]], Any]
    ) -> tirx.For:
        """As many blocks for every part: `begin(first)`, and for each `body(at)`, `at(i)` the block i behind it.

        Behind the last block comes that one again.
        """
        total = prod(self._counts.values())
        length = -(-total // parts)
        part = tirx.Var("part", "int64")
        first = part * length
        last = tirx.Min(first + (length - 1), const(total - 1))
        blocks = serial(length, lambda number: body(lambda i: tirx.Min(first + number + i, last)))
        whole = self._writer.realize("blocks", [*begin(first), blocks], self._staged)
        return tirx.For(part, const(0), const(-(-total // length)), self._writer.outer_kind, whole)

    def _move_to(self, block: Any, along_a: Any, along_b: Any) -> None:
        info, start = self._writer.info, self._writer.start
        for group, count in reversed(self._counts.items()):
            size, extent = self._sizes.get(group, 1), info.extents[group]
            at = block % count * size
            start[group] = tirx.Min(at, const(extent - size)) if extent % size else at
            block = tirx.floordiv(block, count)
        start[info.a] += along_a
        start[info.b] += along_b

    def _place(self, block: Any, row: Any, at: Any, lanes: int) -> list[Any]:
        """Where a staged block has the vector of `lanes` elements at `at` of a row."""
        return [tirx.Ramp((block % self._copies * self._rows + row) * self._pitch + at, const(1), lanes)]

    def _ask_for(self, block: Any, row: Any) -> list[Any]:
        stmts = []
        for load, access in self._loads:
            for at in range(0, self._columns, self._writer.lanes):
                self._move_to(block, row, at)
                stmts.append(ask(load.source, self._writer.indices(access, {}), L1))
        return stmts

    def _stage(self, block: Any, row: Any) -> list[Any]:
        lanes, b = self._writer.lanes, self._writer.info.b
        stmts = []
        for buffer, (load, access) in zip(self._staged, self._loads, strict=True):
            for at in range(0, self._columns, lanes):
                self._move_to(block, row, at)
                value = tirx.BufferLoad(load.source, self._writer.indices(access, {b: (lanes,)}))
                stmts.append(tirx.BufferStore(buffer, bits(value), self._place(block, row, at, lanes)))
        return stmts

    def _turned(self, block: Any, down: Any, across: Any, width: int) -> tuple[list[Any], list[Any]]:
        """Buffers and statements of a tile of a staged block, as many columns wide."""
        lanes = self._writer.lanes
        self._move_to(block, down, across)
        buffers = {load: buffer for buffer, (load, _) in zip(self._staged, self._loads, strict=True)}

        def read(load: Any, access: Access) -> list[Any]:
            def of_row(row: int) -> Any:
                return tirx.BufferLoad(buffers[load], self._place(block, down + row, across, width))

            return [side_by_side([of_row(row) for row in rows_beside(i, width, lanes)]) for i in range(width)]

        return self._writer.tile(read)
