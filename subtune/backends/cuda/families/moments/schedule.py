"""Mean and variance of columns, and what is computed from them, by many blocks: instance and group norm over NHWC.

    parts    of a part's rows, held in registers: their mean, then their squared distances from it
    totals   the sums of all parts, as `templates.moments` has them; what is computed per column, and per group of them
    output   from these, row by row

Three kernels, one after another. Where columns are few, `columns` occupies few multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import ScheduleError
from tvm.tirx.op import tvm_warp_shuffle_xor

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.source.axes import Axes
from subtune.backends.cuda.source.combiner import addition
from subtune.backends.cuda.source.emit import FULL_WARP, Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import Lanes, Unsupported, decoded, not_applicable
from subtune.backends.cuda.source.stages import Lines, axes_at, combination, domain, size_of
from subtune.backends.cuda.source.totals import totals_across
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.moments import Moments, large_reductions, moments_of
from subtune.patterns.stages import elements_inlined
from subtune.tir.blocks import all_blocks, is_reduction

_WARP = 32
_SHARING, _MAX_THREADS = 16, 1024
"""Threads that add up the parts of one column; and of a block."""
_ZERO = tirx.FloatImm("float32", 0.0)


def schedule(problem: Problem[CUDAModel], tile: MomentsTile) -> Kernel | NotApplicable:
    try:
        return _schedule(problem.workload, tile, problem.numerics.exact)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


@dataclass(frozen=True, slots=True)
class MomentsTile:
    """`chunks` runs of `lanes` columns of a block, `threads` of a column, `runs` rows of a thread."""

    lanes: int
    chunks: int
    threads: int
    runs: int

    @property
    def rows(self) -> int:
        return self.threads * self.runs

    def obstacle(self, lines: Lines) -> str:
        if lines.columns % (self.lanes * self.chunks) or lines.length % self.rows:
            return f"{lines.length} rows of {lines.columns} columns are no whole tiles"
        if self.threads * self.chunks % _WARP or (self.chunks % _WARP and _WARP % self.chunks):
            return f"{self.chunks} times {self.threads} threads are no whole warps"
        return ""


def _schedule(workload: Workload, tile: MomentsTile, exact: bool) -> Kernel | NotApplicable:
    inlined = elements_inlined(workload)
    if isinstance(inlined, NotApplicable):
        return inlined
    sch, output = inlined
    names = large_reductions(sch)
    blocks = {sch.get(b).name_hint: sch.get(b) for b in all_blocks(sch)}
    if len(names) != 2 or output in names:
        return NotApplicable("not two large reductions, and an output besides")
    found = moments_of(*(blocks[name] for name in names))
    if isinstance(found, NotApplicable):
        return found
    lines = Lines(found.outer, found.length, found.columns)
    per_column = [block for name, block in blocks.items() if name != output]
    groups = {_group(block, lines) for block in per_column if block.name_hint not in names}
    if len(groups - {1}) > 1:
        return NotApplicable("groups of columns of different sizes")
    if domain(blocks[output], lines) != "full":
        return NotApplicable("the output has no value per element")
    if reason := tile.obstacle(lines):
        return NotApplicable(reason)
    writer = _Writer(found, lines, tile, exact)
    kernels = [writer.parts(), writer.totals(per_column, max(groups, default=1)), writer.output(blocks[output])]
    buffers = [writer.means, writer.distances, *(block.body.buffer for block in per_column)]
    return Kernel(prim_func(sch.mod["main"], kernels, buffers))


class _Writer:
    def __init__(self, found: Moments, lines: Lines, tile: MomentsTile, exact: bool) -> None:
        self._found, self._lines, self._tile, self._exact = found, lines, tile, exact
        self._parts = lines.length // tile.rows
        shape = [self._parts, lines.outer, lines.columns]
        self.means, self.distances = (tirx.decl_buffer(shape, "float32", name) for name in ("means", "distances"))

    def parts(self) -> Any:
        """Mean and squared distances of every part."""
        place = _Place(self._lines, self._tile, self._exact)
        code, lanes, runs = place.code, self._tile.lanes, self._tile.runs
        held = code.local("float32", runs * lanes, "held")
        values = [place.reader.compute(self._found.value, self._reduced_axes(place, row)) for row in place.rows]
        for run, value in enumerate(values):
            with code.unrolled(lanes) as v:
                code.store(held, const(run * lanes) + v, place.reader.at(value, v))
        mean = place.total(lambda run, v: load(held, const(run * lanes) + v), 1.0 / self._tile.rows)

        def away(run: int, v: Any) -> Any:
            distance = load(held, const(run * lanes) + v) - load(mean, v)
            return distance * distance

        distances = place.total(away, 1.0)
        with code.when(tirx.EQ(place.thread, const(0))):
            for buffer, registers in ((self.means, mean), (self.distances, distances)):
                where = [place.part, place.outer, place.column + place.lane]
                place.reader.write(buffer, where, load(registers, place.lane))
        return code.kernel()

    def totals(self, blocks: list[Any], group: int) -> Any:
        """Everything that has one value per column, or per `group` columns, stored."""
        code, lines, found = Code(self._exact), self._lines, self._found
        columns = _Columns(code, lines, group)
        number, shared_by = columns.number, columns.sharing

        def of_parts(of_part: Any) -> Any:
            """The sum over all parts, in every thread."""
            own = code.local("float32", 1, "own")
            code.store(own, const(0), _ZERO)
            with code.serial(-(-self._parts // shared_by)) as k:
                part = k * shared_by + columns.thread
                with code.when(tirx.LT(part, const(self._parts)) if self._parts % shared_by else None):
                    at = part * (lines.outer * lines.columns) + number
                    code.store(own, const(0), load(own, const(0)) + of_part(at))
            return columns.total(own)

        count = tirx.FloatImm("float32", float(self._tile.rows))
        for block in blocks:
            if block.same_as(found.total):
                columns.keep(block, of_parts(lambda at: count * load(self.means, at)))
            elif block.same_as(found.squares):
                mean = columns.computed(found.mean, columns.axes(found.total))

                def squared(at: Any, mean: Any = mean) -> Any:
                    away = load(self.means, at) - load(mean, const(0))
                    return load(self.distances, at) + count * (away * away)

                columns.keep(block, of_parts(squared))
            elif is_reduction(block):
                _, element, _ = combination(block)
                columns.keep(block, columns.total_of_group(columns.computed(element, columns.axes(block)), block))
            else:
                columns.keep(block, columns.computed(block.body.value, columns.axes(block)))
        return code.kernel()

    def output(self, block: Any) -> Any:
        """The output's rows, each thread's as they were in `parts`; what is per column is read once for all of them."""
        place = _Place(self._lines, self._tile, self._exact)
        lines, computed = self._lines, []
        for row in place.rows:
            numbers = [(place.outer, lines.outer), (row, lines.length), (place.column + place.lane, lines.columns)]
            axes = axes_at(block.iter_vars, numbers, place.code.analyzer)
            computed.append((axes, place.reader.compute(block.body.value, axes)))
        for axes, value in computed:
            place.reader.write(block.body.buffer, axes.of(block.body.buffer, block.body.indices), value)
        return place.code.kernel()

    def _reduced_axes(self, place: _Place, row: Any) -> Axes:
        lines, analyzer = self._lines, place.code.analyzer
        numbers = [(place.outer, lines.outer), (place.column + place.lane, lines.columns)]
        kept = axes_at(self._found.axes(tirx.IterVar.DataPar), numbers, analyzer)
        return kept | axes_at(self._found.axes(tirx.IterVar.CommReduce), [(row, lines.length)], analyzer)


class _Columns:
    """A thread's column of what has one value each, `sharing` threads a column; whole groups of columns in a block."""

    def __init__(self, code: Code, lines: Lines, group: int) -> None:
        self._code, self._lines, self._group = code, lines, group
        self._width = width = group * -(-_WARP // group)
        if width > _MAX_THREADS:
            raise Unsupported(f"a group of {group} columns")
        self.sharing = next(n for n in (_SHARING, 8, 4, 2, 1) if n * width <= _MAX_THREADS)
        wide = -(-lines.columns // width)
        block = code.thread("blockIdx.x", lines.outer * wide)
        self._x, self.thread = code.thread("threadIdx.x", width), code.thread("threadIdx.y", self.sharing)
        self._outer, tile = decoded(block, (lines.outer, wide), code.analyzer)
        self._is_column = tirx.LT(tile * width + self._x, const(lines.columns)) if lines.columns % width else None
        column = tile * width + self._x
        if lines.columns % width:  # past the end the last column again, which is not stored
            column = tirx.min(column, const(lines.columns - 1))
        self._column = code.bind("column", column, lines.columns)
        self.number = self._outer * lines.columns + self._column
        self._known: dict[Any, tuple[Any, Any]] = {}  # registers, and the element's number in the buffer
        self._reader = Lanes(code, code.variable("lane", 1), 1, self._value_of)

    def _value_of(self, source: Any, indices: list[Any]) -> Any:
        if source not in self._known:
            return None
        registers, number = self._known[source]
        if not self._reader.is_zero(self._reader.flat(source, indices) - number):
            raise Unsupported(f"{source.name} is read elsewhere than at the column that is computed")
        return load(registers, const(0))

    def axes(self, block: Any) -> Axes:
        """Of the thread's column; a reduction over its group is at that column, too."""
        spatial = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
        reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
        outer, columns, analyzer = (self._outer, self._lines.outer), self._lines.columns, self._code.analyzer
        if self._is_per_column(block):
            return axes_at(spatial, [outer, (self._column, columns)], analyzer)
        group = tirx.floordiv(self._column, const(self._group))
        axes = axes_at(spatial, [outer, (group, columns // self._group)], analyzer)
        return axes | axes_at(reduced, [(tirx.floormod(self._column, const(self._group)), self._group)], analyzer)

    def _is_per_column(self, block: Any) -> bool:
        return size_of(block, tirx.IterVar.DataPar) == self._lines.outer * self._lines.columns

    def computed(self, expr: Any, axes: Axes) -> Any:
        """Registers with the value of `expr`."""
        value = self._reader.compute(expr, axes)
        registers = self._code.local("float32", 1, "value")
        self._code.store(registers, const(0), value)
        return registers

    def total(self, own: Any) -> Any:
        """The sum of what the threads of a column have."""
        shared_by = (self.thread, self._x, self._width)
        return totals_across(self._code, [own], 1, 1, self.sharing, shared_by, addition("float32"))[0]

    def total_of_group(self, own: Any, block: Any) -> Any:
        """What `block` combines of a group's columns, in each of their threads."""
        code, (combine, _, identity) = self._code, combination(block)
        shared = code.shared("float32", self._width, "group")
        with code.when(tirx.EQ(self.thread, const(0))):
            code.store(shared, self._x, load(own, const(0)))
        code.sync()
        total = code.local("float32", 1, "total")
        code.store(total, const(0), identity)
        first = tirx.floordiv(self._x, const(self._group)) * self._group
        with code.serial(self._group) as i:
            code.store(total, const(0), combine(load(total, const(0)), load(shared, first + i)))
        return total

    def keep(self, block: Any, registers: Any) -> None:
        """`registers` are what the block computes: stored, and known to the blocks after it."""
        code, group = self._code, self._group
        number, conditions = self.number, [tirx.EQ(self.thread, const(0))]
        if not self._is_per_column(block):
            number = self._outer * (self._lines.columns // group) + tirx.floordiv(self._column, const(group))
            conditions.append(tirx.EQ(tirx.floormod(self._x, const(group)), const(0)))
        if self._is_column is not None:
            conditions.append(self._is_column)
        self._known[block.body.buffer] = registers, number
        with code.when(tirx.all(*conditions)):
            code.store(block.body.buffer, number, load(registers, const(0)))


class _Place:
    """Where a thread is: the rows and the first of its columns, of one part."""

    def __init__(self, lines: Lines, tile: MomentsTile, exact: bool) -> None:
        self.code = code = Code(exact)
        self._tile = tile
        parts, wide = lines.length // tile.rows, lines.columns // (tile.lanes * tile.chunks)
        block = code.thread("blockIdx.x", lines.outer * parts * wide)
        self._chunk, self.thread = code.thread("threadIdx.x", tile.chunks), code.thread("threadIdx.y", tile.threads)
        self.outer, self.part, across = decoded(block, (lines.outer, parts, wide), code.analyzer)
        self.column = (across * tile.chunks + self._chunk) * tile.lanes
        self.rows = [self.part * tile.rows + run * tile.threads + self.thread for run in range(tile.runs)]
        self.lane = code.variable("lane", tile.lanes)
        self.reader = Lanes(code, self.lane, tile.lanes)

    def total(self, value: Any, factor: float) -> Any:
        """`factor` times the sum of `value(run, lane)` over the part's rows, for each of the thread's columns."""
        code, tile = self.code, self._tile
        sums = code.local("float32", tile.lanes, "sum")
        with code.unrolled(tile.lanes) as v:
            code.store(sums, v, _ZERO)
        for run in range(tile.runs):
            with code.unrolled(tile.lanes) as v:
                code.store(sums, v, load(sums, v) + value(run, v))
        offset = _WARP // 2
        while offset >= tile.chunks:  # threads of a warp that share columns
            with code.unrolled(tile.lanes) as v:
                mine = load(sums, v)
                other = tvm_warp_shuffle_xor(tirx.const(FULL_WARP, "uint32"), mine, offset, _WARP, _WARP)
                code.store(sums, v, mine + other)
            offset //= 2
        together = max(1, _WARP // tile.chunks)
        slots, width = tile.threads // together, tile.chunks * tile.lanes
        shared = code.shared("float32", slots * width, "shared")
        is_first = tirx.EQ(self.thread % together, const(0)) if together > 1 else None
        with code.when(is_first), code.unrolled(tile.lanes) as v:
            at = tirx.floordiv(self.thread, const(together)) * width + self._chunk * tile.lanes + v
            code.store(shared, at, load(sums, v))
        code.sync()
        result = code.local("float32", tile.lanes, "total")
        with code.unrolled(tile.lanes) as v:
            code.store(result, v, _ZERO)
        with code.unrolled(slots) as s, code.unrolled(tile.lanes) as v:
            code.store(result, v, load(result, v) + load(shared, s * width + self._chunk * tile.lanes + v))
        if factor != 1.0:
            with code.unrolled(tile.lanes) as v:
                code.store(result, v, load(result, v) * tirx.FloatImm("float32", factor))
        return result


def _group(block: Any, lines: Lines) -> int:
    """Columns that one of the block's values belongs to. Raises Unsupported where it has another domain."""
    kept, reduced = size_of(block, tirx.IterVar.DataPar), size_of(block, tirx.IterVar.CommReduce)
    if str(block.body.buffer.dtype) != "float32" or kept * reduced != lines.outer * lines.columns:
        raise Unsupported(f"block {block.name_hint} is neither of columns nor of groups of them")
    return reduced
