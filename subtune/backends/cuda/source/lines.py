"""Reductions along lines, and what is computed from them: the kernel of rows, columns and matrix-vector products.

An array is `outer` x `length` x `columns`; every line of `length` elements is reduced to one. Stages have one of
three domains: *full* (all elements), *kept* (one per line), or they reduce the full one to the kept one.

    columns == 1: `threads` neighbours share a line, each takes runs of `lanes` of its elements; shuffles make totals
    columns > 1:  a thread takes `lanes` neighbouring columns, `threads` of them share the length; shared memory does

A total may be of several values: an ArgMax's largest, and where it is. `Parts` of a line are several blocks': they
store their totals, and another kernel takes these for its elements.

With `keep`, what is read stays in registers from the first stage to the last, so that memory is read once. Without, the
lines are walked once for every stage. `tile` lines times `batch` lines `outer // batch` apart are one group's work, so
that operands which they share (a matrix-vector product's) are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from subtune.backends.cuda.source.axes import Axes
from subtune.backends.cuda.source.combiner import Combiner, combiner_of, indices_of
from subtune.backends.cuda.source.emit import Code, const, load
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, rounded, wide
from subtune.backends.cuda.source.stages import Lines, axes_at, domain, indices_at
from subtune.backends.cuda.source.totals import sync_cluster, totals_across, totals_along, totals_of_cluster
from subtune.tir.blocks import is_reduction

_MAX_PARTIALS = 8  # sums of a thread: where lines are few, several of each, which do not wait for one another


@dataclass(frozen=True, slots=True)
class Plan:
    """Who computes what: see the module. `unroll` runs of a line are read before the first of them is used."""

    threads: int
    groups: int
    lanes: int
    tile: int = 1
    batch: int = 1
    unroll: int = 4
    keep: bool = False
    exact: bool = False
    cluster: int = 1  # blocks that share a line; along lines, one group each


@dataclass(frozen=True, slots=True)
class Parts:
    """Lines of `length` elements in `count` parts of `part`, whose `totals` are kept, by the whole total's buffer."""

    count: int
    part: int
    length: int
    totals: Mapping[Any, Any]


def line_kernel(blocks: Sequence[Any], lines: Lines, plan: Plan, outputs: Sequence[Any]) -> Any:
    """The kernel (a statement) that runs `blocks` in their order and stores those of their buffers in `outputs`."""
    return _LineWriter(lines, plan, outputs).write(blocks)


def part_kernels(
    blocks: Sequence[Any], lines: Lines, parts: Parts, plans: tuple[Plan, Plan], outputs: Sequence[Any]
) -> list[Any]:
    """`line_kernel` of blocks with a single reduction, in two: the totals of the parts, then all that is left."""
    reductions = [block for block in blocks if is_reduction(block)]
    of_parts = Lines(lines.outer * parts.count, parts.part, lines.columns)
    last = _LineWriter(Lines(lines.outer, parts.count, lines.columns), plans[1], outputs, given=parts.totals)
    return [_LineWriter(of_parts, plans[0], (), parts).write(reductions), last.write(blocks)]


@dataclass(frozen=True, slots=True)
class _Run:
    """A thread's part of one line: its elements `at` (in lanes), whether they exist, and who has read them."""

    at: Any
    guard: Any
    reader: Lanes


class _LineWriter:
    def __init__(
        self, lines: Lines, plan: Plan, outputs: Sequence[Any], parts: Parts | None = None,
        given: Mapping[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self._lines, self._plan, self._outputs = lines, plan, set(outputs)
        self._parts, self._given = parts, given or {}
        self._code = code = Code(plan.exact)
        self._across = lines.columns > 1
        self._kept: dict[Any, Any] = {}  # buffer -> registers, one for every point (and lane, across)
        self._full: dict[Any, dict[tuple[int, int], Any]] = {}  # buffer -> (point, run) -> registers
        self._now: tuple[int, int] = (0, 0)  # the point and the run that are being computed
        self._now_at: Any = None
        lanes = plan.lanes
        step = plan.threads * plan.cluster * (1 if self._across else lanes)
        self._runs = -(-lines.length // step)
        chunks = lines.columns // lanes if self._across else 1
        wide_blocks = -(-chunks // plan.groups) if self._across else 1
        rows = lines.outer // plan.batch
        per_block = plan.tile if self._across else plan.tile * plan.groups
        bx, self._rank = code.thread("blockIdx.x", -(-rows // per_block) * wide_blocks * plan.cluster), const(0)
        if plan.cluster > 1:
            code.thread("clusterCtaIdx.x", plan.cluster)
            bx, self._rank = tirx.floordiv(bx, const(plan.cluster)), tirx.floormod(bx, const(plan.cluster))
        if self._across:
            self._group, self._t = code.thread("threadIdx.x", plan.groups), code.thread("threadIdx.y", plan.threads)
            chunk = bx % wide_blocks * plan.groups + self._group
            last = const(chunks - 1)
            self._column = code.bind("chunk", tirx.min(chunk, last) if chunks % plan.groups else chunk, chunks) * lanes
            first = tirx.floordiv(bx, const(wide_blocks)) * plan.tile
        else:
            self._t, self._group = code.thread("threadIdx.x", plan.threads), code.thread("threadIdx.y", plan.groups)
            self._column = const(0)
            first = (bx * plan.groups + self._group) * plan.tile
        self._lane = code.variable("lane", lanes)
        self._points = self._outer_points(first, rows, rows % per_block != 0)
        self._reader = self._new_reader(lanes if self._across else 1)

    def _outer_points(self, first: Any, rows: int, is_ragged: bool) -> list[Any]:
        """The outer indices of the group; past the end the last one again, which is stored twice."""
        points = []
        for i in range(self._plan.tile):
            row = first + i
            row = self._code.bind("row", tirx.min(row, const(rows - 1)) if is_ragged else row, rows)
            points.append(row)
        return [row + const(b * rows) if b else row for b in range(self._plan.batch) for row in points]

    def _new_reader(self, width: int) -> Lanes:
        return Lanes(self._code, self._lane, width, self._known)

    def _kept_index(self, point: int) -> Any:
        if not self._across:
            return self._points[point]
        return self._points[point] * self._lines.columns + self._column + self._lane

    def _full_index(self, point: int, at: Any) -> Any:
        if not self._across:
            return self._points[point] * self._lines.length + at
        return (self._points[point] * self._lines.length + at) * self._lines.columns + self._column + self._lane

    def _known(self, source: Any, indices: list[Any]) -> Any:
        """The registers that stand for a buffer that was computed in this kernel."""
        point, _ = self._now
        if source in self._kept:
            expected, registers = self._kept_index(point), self._kept[source]
            place = const(point * self._plan.lanes) + self._lane if self._across else const(point)
        elif source in self._full:
            expected, registers = self._full_index(point, self._now_at), self._full[source][self._now]
            place = self._lane
        else:
            return None
        if not self._reader.is_zero(self._reader.flat(source, indices) - expected):
            numbers = self._numbers("kept" if source in self._kept else "full", point, self._now_at)
            there = indices_at(numbers, [int(d) for d in source.shape], self._code.analyzer)
            if not all(self._reader.is_zero(one - other) for one, other in zip(indices, there, strict=True)):
                raise Unsupported(f"{source.name} is read elsewhere than at the element that is computed")
        return load(registers, place)

    def write(self, blocks: Sequence[Any]) -> Any:
        runs = self._line_runs(range(self._runs)) if self._plan.keep else []
        read = {region.source for block in blocks for region in block.reads}
        for block in blocks:
            if not is_reduction(block) and not isinstance(block.body, tirx.BufferStore):
                raise Unsupported("a block stores more than one value")
            is_given = any(buffer in self._given for buffer in indices_of(block))
            kind = "reduce" if is_given or (self._parts and is_reduction(block)) else domain(block, self._lines)
            if kind == "kept":
                self._kept_stage(block, block.body.buffer in read)
                continue
            if kind == "full" and not self._plan.keep and block.body.buffer not in self._outputs:
                raise Unsupported(f"block {block.name_hint} must be kept in registers")
            stage = self._reduce_stage(block) if kind == "reduce" else self._full_stage(block)
            self._walk(runs, stage)
            if kind == "reduce":
                self._finish(block)
        if self._plan.cluster > 1:
            sync_cluster(self._code)
        return self._code.kernel()

    def _walk(self, runs: list[_Run], stage: Callable[[list[_Run]], None]) -> None:
        """The stage over the whole line: all runs at once where they are kept, else `unroll` at a time."""
        if self._plan.keep:
            stage(runs)
            return
        unroll = min(self._plan.unroll, self._runs)
        with self._code.serial(-(-self._runs // unroll)) as k:
            stage(self._line_runs([k * unroll + u for u in range(unroll)], self._runs % unroll != 0))

    def _line_runs(self, numbers: Sequence[Any], is_ragged: bool = False) -> list[_Run]:
        plan, lines = self._plan, self._lines
        step, together, runs = 1 if self._across else plan.lanes, plan.threads * plan.cluster, []
        for number in numbers:
            run, guard = number * together + self._rank * plan.threads + self._t, None
            run = self._code.bind("run", run, lines.length // step)  # true where the guard is
            is_last = not isinstance(number, int) or number == self._runs - 1
            if is_last and (is_ragged or lines.length % (together * step)):
                guard = tirx.LT(run, const(lines.length // step))
            guard = self._within_line(run * step, guard)
            runs.append(_Run(run if self._across else run * step + self._lane, guard, self._new_reader(plan.lanes)))
        return runs

    def _within_line(self, first: Any, guard: Any) -> Any:
        """`guard`, and that `first` of a part lies within the line, where the last part is shorter."""
        if self._parts is None or self._parts.count * self._lines.length == self._parts.length:
            return guard
        (point,) = self._points
        begin = tirx.floormod(point, const(self._parts.count)) * self._lines.length
        inside = tirx.LT(begin + first, const(self._parts.length))
        return inside if guard is None else tirx.And(guard, inside)

    def _axes(self, block: Any, kind: str, point: int, at: Any) -> Axes:
        """The block's axes at an element of the group."""
        analyzer, kinds = self._code.analyzer, (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
        spatial, reduced = ([iv for iv in block.iter_vars if int(iv.iter_type) == kind] for kind in kinds)
        if self._parts is not None:
            at = tirx.floormod(self._points[point], const(self._parts.count)) * self._lines.length + at
        length = self._lines.length if self._parts is None else self._parts.length
        axes = axes_at(spatial, self._numbers(kind, point, at), analyzer)
        return replace(axes | axes_at(reduced, [(at, length)], analyzer), apart=(*self._kept, *self._full))

    def _numbers(self, kind: str, point: int, at: Any) -> list[tuple[Any, int]]:
        """Which line it is and which column (`full`: and which of its elements), each with how many there are."""
        outer, lines = self._points[point], self._lines.outer
        if self._parts is not None:
            outer, lines = tirx.floordiv(outer, const(self._parts.count)), lines // self._parts.count
        elements = [(at, self._lines.length)] if kind == "full" else []
        column = self._column + self._lane if self._across else const(0)
        return [(outer, lines), *elements, (column, self._lines.columns)]

    def _reduce_stage(self, block: Any) -> Callable[[list[_Run]], None]:
        code, plan, points = self._code, self._plan, len(self._points)
        combiner = combiner_of(block)
        partials = plan.lanes
        while not self._across and partials > 1 and partials * points > _MAX_PARTIALS:
            partials //= 2
        sums = combiner.begin(code, points * partials, "sum")
        self._kept |= zip(combiner.buffers, sums, strict=True)

        def stage(runs: list[_Run]) -> None:
            values = []
            for number, run in enumerate(runs):
                with code.when(run.guard):
                    for point in range(points):
                        self._now, self._now_at = (point, number), run.at
                        values.append((run, point, self._elements(block, combiner, run, point)))
            for run, point, value in values:
                with code.when(run.guard), code.unrolled(plan.lanes) as v:
                    place = const(point * partials) + v % partials
                    x = [rounded(run.reader.at(x, v), dtype) for x, dtype in zip(value, combiner.dtypes, strict=True)]
                    combiner.add(code, sums, place, x)

        return stage

    def _elements(self, block: Any, combiner: Combiner, run: _Run, point: int) -> list[Any]:
        """What the run adds to the block's totals; where it adds up those of parts, these."""
        if any(buffer in self._given for buffer in combiner.buffers):
            at = self._full_index(point, run.at)
            return [run.reader.compute(load(self._given[buffer], at), {}) for buffer in combiner.buffers]
        axes = self._axes(block, "reduce", point, run.at)
        return [run.reader.compute(element, axes) for element in combiner.elements]

    def _finish(self, block: Any) -> None:
        """Totals of the threads' partial results, in every thread."""
        combiner, points, plan = combiner_of(block), len(self._points), self._plan
        sums = [self._kept[buffer] for buffer in combiner.buffers]
        shared_by = (self._t, self._group, plan.groups)
        if self._across:
            totals = totals_across(self._code, sums, points, plan.lanes, plan.threads, shared_by, combiner)
        else:
            partials = int(sums[0].shape[0]) // points
            totals = totals_along(self._code, sums, points, partials, plan.threads, shared_by, combiner)
        if plan.cluster > 1:
            count = points * plan.lanes if self._across else points
            totals = totals_of_cluster(self._code, totals, count, shared_by, plan.cluster, combiner)
        self._kept |= zip(combiner.buffers, totals, strict=True)
        indices = indices_of(block)
        for buffer, total in zip(combiner.buffers, totals, strict=True):
            if buffer not in self._outputs and self._parts is None:
                continue
            with self._code.when(self._is_first()):
                for point in range(points):
                    place = const(point * plan.lanes) + self._lane if self._across else const(point)
                    if self._parts is not None:
                        to, where = self._parts.totals[buffer], [self._kept_index(point)]
                    else:
                        axes = self._axes(block, "reduce", point, const(0))
                        to, where = buffer, [axes.get(index, index) for index in indices[buffer]]
                    self._store_kept(to, where, load(total, place))

    def _is_first(self) -> Any:
        return tirx.EQ(self._rank * self._plan.threads + self._t, const(0)) if self._plan.threads > 1 else None

    def _store_kept(self, buffer: Any, indices: list[Any], value: Any) -> None:
        if self._across:
            self._reader.write(buffer, indices, value)
        else:
            at = self._reader.flat(buffer, indices)
            self._code.store(buffer, at, rounded(value, str(buffer.dtype)))

    def _kept_stage(self, block: Any, is_read: bool) -> None:
        code, buffer, width = self._code, block.body.buffer, self._plan.lanes if self._across else 1
        is_output, reader = buffer in self._outputs, self._new_reader(width)
        is_kept = is_read or not is_output  # every thread needs what later stages read: only one stores it
        if is_kept:
            registers = code.local(wide(str(buffer.dtype)), len(self._points) * width, "kept")
        with code.when(None if is_kept else self._is_first()):
            for point in range(len(self._points)):
                self._now = (point, 0)
                axes = self._axes(block, "kept", point, None)
                value = reader.compute(block.body.value, axes)
                if is_output:
                    indices = [axes.get(index, index) for index in block.body.indices]
                    with code.when(self._is_first() if is_kept else None):
                        self._store_kept(buffer, indices, value)
                if is_kept:
                    with code.unrolled(width) as v:
                        code.store(registers, const(point * width) + v, reader.at(value, v))
        if is_kept:
            self._kept[buffer] = registers

    def _full_stage(self, block: Any) -> Callable[[list[_Run]], None]:
        code, plan = self._code, self._plan
        buffer = block.body.buffer

        def stage(runs: list[_Run]) -> None:
            values = []
            made: dict[tuple[int, int], Any] = {}
            for number, run in enumerate(runs):
                with code.when(run.guard):
                    for point in range(len(self._points)):
                        self._now, self._now_at = (point, number), run.at
                        axes = self._axes(block, "full", point, run.at)
                        values.append((number, point, axes, run.reader.compute(block.body.value, axes)))
            for number, point, axes, value in values:
                run = runs[number]
                with code.when(run.guard):
                    if buffer in self._outputs:
                        run.reader.write(buffer, axes.of(buffer, block.body.indices), value)
                        continue
                    made[point, number] = registers = code.local(wide(str(buffer.dtype)), plan.lanes, "full")
                    with code.unrolled(plan.lanes) as v:
                        code.store(registers, v, run.reader.at(value, v))
            if made:
                self._full[buffer] = made

        return stage
