"""A reduction whose innermost run is reduced: vectors of partial results in registers, folded at the end.

for kept runs, pieces of the outermost reduced one (parallel):
  for reduced runs:  `unroll` vectors of partial results  ->  one number
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from subtune.backends.cpu.families.partials.pieces import Places, Shares, count, put, unfolded, value_at
from subtune.backends.cpu.math.horizontal import folded
from subtune.patterns.runs import Run
from subtune.patterns.strided import Strided
from subtune.tir.blocks import written
from subtune.tir.statements import buffer, integer, load, sequence, serial, store, unrolled, vectorized


class Rows:
    """Writes one reduction.

    Args:
        unroll: vectors of partial results, a power of two.
    """

    def __init__(self, found: Strided, unroll: int, lanes: int, shares: Shares):
        self._found, self._unroll, self._lanes, self._shares = found, unroll, lanes, shares
        self._kept = [run for run in found.runs if not run.is_reduced]
        self._reduced = [run for run in found.runs if run.is_reduced]
        self.buffers: list[Any] = []

    def stages(self) -> list[Any]:
        """One stage, or two where results are several threads'."""
        name, pieces, rows = self._found.block.name_hint, self._shares.pieces, count(self._kept)
        if pieces == 1:
            return [written(name, self._shares.each(rows, self.whole_row))]
        partial = buffer(f"{name}_partial", [pieces, rows], dtype=self._found.dtype)
        self.buffers.append(partial)

        def part(grain: Any) -> Any:
            piece, row = tirx.floordiv(grain, integer(rows)), tirx.floormod(grain, integer(rows))
            return self._row(unfolded(self._kept, row), piece, lambda total: store(partial, total, piece, row))

        def whole(row: Any) -> Any:
            total = load(partial, 0, row)
            for piece in range(1, pieces):
                total = self._found.combine(total, load(partial, piece, row))
            return put(self._found, total, unfolded(self._kept, row))

        return [written(f"{name}_parts", self._shares.each(pieces * rows, part)), written(name, serial(rows, whole))]

    def whole_row(self, row: Any) -> Any:
        """The statement that computes and stores one result; `row` counts the kept runs."""
        places = unfolded(self._kept, row)
        return self._row(places, integer(0), lambda total: put(self._found, total, places))

    def _row(self, kept: Places, piece: Any, stored: Callable[[Any], Any]) -> Any:
        found, lanes, unroll = self._found, self._lanes, self._unroll
        sums = buffer("sums", [unroll * lanes], "local", found.dtype)
        outer = self._reduced[:-1]
        clear = unrolled(
            unroll, lambda v: vectorized(lanes, lambda lane: store(sums, found.identity, v * integer(lanes) + lane))
        )

        def along(places: Places, runs: list[Run]) -> Any:
            if not runs:
                return self._line(sums, places, piece, is_shared=not outer)
            begin, end = (
                self._shares.range_of(piece, runs[0].extent) if len(runs) == len(outer) else (0, runs[0].extent)
            )
            return serial(end - begin, lambda i: along({**places, runs[0]: begin + i}, runs[1:]))

        vectors = [tirx.BufferLoad(sums, [tirx.Ramp(integer(v * lanes), integer(1), lanes)]) for v in range(unroll)]
        fold, total = folded(vectors, found.combine)
        body = sequence(clear, along(kept, outer), *fold, stored(total))
        return written(f"{found.block.name_hint}_row", body, [sums])

    def _line(self, sums: Any, places: Places, piece: Any, is_shared: bool) -> Any:
        """The innermost run, or a piece of it, added to the partial results."""
        found, lanes, width, last = self._found, self._lanes, self._unroll * self._lanes, self._reduced[-1]
        steps, left = divmod(last.extent, width)

        def add(first: Any, at: Any, size: int) -> Any:
            def lane(i: Any) -> Any:
                value = value_at(found, {**places, last: first + i})
                return store(sums, found.combine(load(sums, at + i), value), at + i)

            return vectorized(size, lane)

        def step(number: Any) -> Any:
            first = number * integer(width)
            return unrolled(self._unroll, lambda v: add(first + v * integer(lanes), v * integer(lanes), lanes))

        begin, end = self._shares.range_of(piece, steps) if is_shared else (integer(0), integer(steps))
        parts = [serial(end - begin, lambda i: step(begin + i))] if steps else []
        rest = [add(integer(steps * width + at), integer(at), min(lanes, left - at)) for at in range(0, left, lanes)]
        if rest and is_shared and self._shares.pieces > 1:
            is_last = piece == integer(self._shares.pieces - 1)
            rest = [tirx.IfThenElse(is_last, sequence(*rest), None)]
        return sequence(*parts, *rest)
