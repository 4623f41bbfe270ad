"""Means and squared distances from them in one reading: group norm and instance norm, channels last.

    for parts of the rows (parallel):
      for pieces, so few rows that they stay in L1:
        their mean;  their squared distances from it, while the next piece is asked for;  both merged into the part's
    the sums of all parts;  what is computed from them
    for the output's rows (parallel):  all columns as vectors

Over n rows whose mean is p, sum (x - m)^2 = sum (x - p)^2 + n (p - m)^2 for any m: nothing cancels, as it would in
sum x^2 - n m^2. Source: Chan, Golub, LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances (1979).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.families.memory_bound import MIN_COLUMN, is_read_once
from subtune.backends.cpu.family import MODE, PER_ROW, STREAMED, CPUProblem
from subtune.backends.cpu.loops.prefetch import L1, ask
from subtune.backends.cpu.loops.rows import in_rows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.moments import Moments, large_reductions, moments_of
from subtune.patterns.rows import Columns
from subtune.patterns.stages import elements_inlined
from subtune.tir.blocks import root_stages, stage_block, with_stages, written
from subtune.tir.expressions import loads, variables
from subtune.tir.statements import buffer, integer, load, parallel, sequence, serial, store, unrolled, vectorized
from subtune.tir.substitute import substitute

_MAX_VECTORS = 8  # of columns at a time: their sums and means stay in registers
_LINE_BYTES = 64
_ZERO = tirx.const(0.0, "float32")


@dataclass(frozen=True, slots=True)
class Knobs:
    """Rows of a piece."""

    rows: int
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    if not isinstance(anchor, Columns):
        return "no reductions along columns"
    if is_read_once(workload) or workload.nbytes <= device.l2_bytes:
        return "no norm, or so small that L2 holds it"
    return "no vectors of columns" if anchor.columns % device.lanes() else ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Pieces of rows that stay in L1 beside the next one, for the mean and the variance of a norm."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    most = device.l1d_bytes // 3 // (4 * anchor.columns)
    rows = max((n for n in range(1, most + 1) if anchor.length % n == 0), default=0)
    if rows < MIN_COLUMN:
        return []
    read = max(arg.nbytes for arg in workload.args)
    return [Candidate.of("moments", Knobs(rows), stream_s(workload.nbytes, device) + stream_s(read, device))]


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    rows, lanes = knobs.rows, problem.device.lanes()
    try:
        inlined = elements_inlined(problem.workload)
        if isinstance(inlined, NotApplicable):
            return inlined
        sch, output = inlined
        names = large_reductions(sch)
        if len(names) != 2:
            return NotApplicable("not two large reductions")
        if (reason := in_rows(sch, sch.get_sblock(output), lanes)) is not None:
            return reason
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    func = sch.mod["main"]
    stages = root_stages(func)
    first, second = ([stage_block(stage).name_hint for stage in stages].index(name) for name in names)
    found = moments_of(stage_block(stages[first]), stage_block(stages[second]))
    if isinstance(found, NotApplicable):
        return found
    if found.length % rows or found.columns % lanes:
        return NotApplicable(f"{found.length} rows of {found.columns} are no whole pieces of {rows}")
    writer = _Writer(found, rows, problem.device.threads, lanes)
    stages[first : first + 1] = [writer.parts(), writer.sums()]
    stages[second + 1] = writer.squares()
    return Kernel(with_stages(func, stages, [*func.body.block.alloc_buffers, writer.means, writer.distances]))


class _Writer:
    def __init__(self, found: Moments, rows: int, threads: int, lanes: int) -> None:
        self._found, self._rows, self._lanes = found, rows, lanes
        self._pieces = found.length // rows
        self._parts = min(threads, self._pieces)
        vectors = found.columns // lanes
        self._vectors = max(v for v in range(1, _MAX_VECTORS + 1) if vectors % v == 0)
        shape = (self._parts, found.outer, found.columns)
        self.means, self.distances = buffer("moments_mean", shape), buffer("moments_distance", shape)

    def parts(self) -> Any:
        """Mean and squared distances of every part, into `means` and `distances`."""
        width = self._vectors * self._lanes
        tiles = self._found.columns // width

        def part(number: Any) -> Any:
            begin, end = self._begin(number), self._begin(number + integer(1))

            def of_outer(outer: Any) -> Any:
                def clear(column: Any) -> Any:
                    return sequence(*(store(b, _ZERO, number, outer, column) for b in (self.means, self.distances)))

                def piece(done: Any) -> Any:
                    return serial(tiles, lambda t: self._piece(number, outer, begin + done, done, t * integer(width)))

                return sequence(self._over_columns(clear), serial(end - begin, piece))

            return serial(self._found.outer, of_outer)

        return written("moments", parallel(self._parts, part))

    def sums(self) -> Any:
        """`total`'s result, from the parts' means."""

        def of_part(part: Any, outer: Any, column: Any, at: dict[Any, Any]) -> Any:
            return self._count(part) * load(self.means, part, outer, column)

        return self._of_parts(self._found.total, of_part)

    def squares(self) -> Any:
        """`squares`' result, from the parts' squared distances and their means' distances from `mean`."""

        def of_part(part: Any, outer: Any, column: Any, at: dict[Any, Any]) -> Any:
            distance = load(self.means, part, outer, column) - substitute(self._found.mean, at)
            return load(self.distances, part, outer, column) + self._count(part) * distance * distance

        return self._of_parts(self._found.squares, of_part)

    def _piece(self, part: Any, outer: Any, number: Any, done: Any, first: Any) -> Any:
        """One piece's columns from `first` on, merged into those of the `done` pieces before it."""
        lanes, rows = self._lanes, self._rows
        means = buffer("piece_mean", (self._vectors * lanes,), "local")
        distances = buffer("piece_distance", (self._vectors * lanes,), "local")

        def over(body: Callable[[Any], Any]) -> Any:
            return unrolled(self._vectors, lambda v: vectorized(lanes, lambda lane: body(v * integer(lanes) + lane)))

        def value(row: Any, column: Any) -> Any:
            at = self._found.at(outer, number * integer(rows) + row, first + column)
            return substitute(self._found.value, at)

        def distance(row: Any) -> Any:
            def body(column: Any) -> Any:
                away = value(row, column) - load(means, column)
                return store(distances, load(distances, column) + away * away, column)

            return sequence(*self._ask(outer, (number + integer(1)) * integer(rows) + row, first), over(body))

        def merge(column: Any) -> Any:
            at = (part, outer, first + column)
            weight = tirx.const(1.0, "float32") / tirx.Cast("float32", done + integer(1))
            away = load(means, column) - load(self.means, *at)
            count = tirx.Cast("float32", done * integer(rows))
            return sequence(
                store(
                    self.distances,
                    load(self.distances, *at) + load(distances, column) + away * away * (count * weight),
                    *at,
                ),
                store(self.means, load(self.means, *at) + away * weight, *at),
            )

        body = [
            over(lambda column: store(means, _ZERO, column)),
            serial(
                rows, lambda row: over(lambda column: store(means, load(means, column) + value(row, column), column))
            ),
            over(lambda column: store(means, load(means, column) * tirx.const(1.0 / rows, "float32"), column)),
            over(lambda column: store(distances, _ZERO, column)),
            serial(rows, distance),
            over(merge),
        ]
        return written("piece", sequence(*body), [means, distances])

    def _ask(self, outer: Any, row: Any, column: Any) -> list[Any]:
        """For a row's columns of what is as large as all rows together."""
        at = self._found.at(outer, row, integer(0))
        reduced = {iv.var for iv in self._found.axes(tirx.IterVar.CommReduce)}
        asked = []
        for one in loads(self._found.value):
            if reduced & variables(list(one.indices)):
                *others, _ = (substitute(index, at) for index in one.indices)
                line = _LINE_BYTES // tvm_ffi.dtype(str(one.source.dtype)).itemsize
                width = self._vectors * self._lanes
                asked += [ask(one.source, [*others, column + integer(i)], L1) for i in range(0, width, line)]
        return asked

    def _of_parts(self, block: Any, of_part: Callable[[Any, Any, Any, dict[Any, Any]], Any]) -> Any:
        """The statement that computes the block's result as the sum of `of_part` over all parts."""

        def of_outer(outer: Any) -> Any:
            def column(number: Any) -> Any:
                at = self._found.at(outer, integer(0), number)
                place = [substitute(index, at) for index in self._found.total.body.indices]
                parts = (of_part(integer(part), outer, number, at) for part in range(self._parts))
                return store(block.body.buffer, sum(parts, start=_ZERO), *place)

            return self._over_columns(column)

        return written(block.name_hint, serial(self._found.outer, of_outer))

    def _over_columns(self, body: Callable[[Any], Any]) -> Any:
        lanes = self._lanes
        vectors = self._found.columns // lanes
        return serial(vectors, lambda v: vectorized(lanes, lambda lane: body(v * integer(lanes) + lane)))

    def _count(self, part: Any) -> Any:
        """Rows of a part."""
        return tirx.Cast("float32", (self._begin(part + integer(1)) - self._begin(part)) * integer(self._rows))

    def _begin(self, part: Any) -> Any:
        """The first piece of a part."""
        return tirx.floordiv(part * integer(self._pieces), integer(self._parts))


FAMILY = Family("moments", 1, Knobs, accepts, candidates, schedule, (STREAMED, PER_ROW))
