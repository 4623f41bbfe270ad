"""Software prefetch: what comes next is asked of memory while something else is computed with.

Packed weights: a panel of B is read once from memory and then, for the other rows of A, from cache. Hardware
prefetchers fetch it while it is read for the first time, and the FMA units wait for it; asked for evenly over the whole
time that the panel before it is in use, it costs no time as long as memory keeps up. Measured on a 7x7x512 convolution
whose weights come from memory: 83 % of the FMA peak without, 98 % with. Panels that are read by one tile of rows alone
are a stream, of which every line is asked for a little ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlockRealize
from tvm.tirx import PrimFunc

from subtune.tir.blocks import root_stages, with_stages
from subtune.tir.expressions import variables
from subtune.tir.substitute import substitute
from subtune.tir.walk import found, holds, with_body

_AHEAD_BYTES = 4096
_STREAM_AHEAD_BYTES = 8192  # of weights read once: 3 rows of A times 16 MB take 0.8 of the time from memory
_ROWS_AHEAD_BYTES = 8192  # two rows of 4 KB: with one, softmax took 1.05 to 1.2 times as long
_LINE_BYTES = 64
L1 = 3
L2_AND_BEYOND = 2  # llvm.prefetch's locality; the micro-kernel's own lines stay in L1


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """Where a micro-kernel sits in its loop nest.

    Attributes:
        update: name of the block that adds the products.
        depth: loops around its first reduction loop.
        rows: how many of those, the innermost, run over rows of A for which one panel is read again.
        reduce: reduction loops.
        passes: over how many of those rows' steps the next panel is asked for, at most; 0: over all.
        panels: how many panels of weights lie side by side in a tile.
        ahead: how many panels further the next tile's begin.
    """

    update: str
    depth: int
    rows: int
    reduce: int
    passes: int = 0
    panels: int = 1
    ahead: int = 1


def prefetch_panels(func: PrimFunc, panels: Any, kernel: MicroKernel, into: int = L2_AND_BEYOND) -> PrimFunc:
    """`func` asking in every step of the reduction for a share of the next panel, or for the step to come of a stream.

    Args:
        panels: the parameter that holds packed weights, `[..., n / nr, k..., nr]`.
        into: where the next panel goes; into L1 where that holds it beside the panel in use.

    Behind the last panel it asks for memory that nobody reads; a prefetch cannot fault.
    """
    return before_steps(func, kernel, lambda loops, tile: _asked(loops, tile, panels, kernel, into))


def before_steps(func: PrimFunc, kernel: MicroKernel, made: Callable[[Sequence[Any], Any], Sequence[Any]]) -> PrimFunc:
    """`func` with the statements `made(loops, tile)` before each step of a micro-kernel's reduction.

    `loops` are all that are round the step's `tile`, the outermost first.
    """
    stages = [_insert(s, [], kernel, made) if holds(s, kernel.update) else s for s in root_stages(func)]
    return with_stages(func, stages, func.body.block.alloc_buffers)


def prefetch_rows(func: PrimFunc, updates: Collection[str]) -> PrimFunc:
    """`func` asking for what lies `_AHEAD_BYTES` behind each vector that the blocks `updates` read of a parameter.

    Hardware prefetchers begin anew on every page. Whole rows are skipped: those of the buffer's last dim.
    """

    def insert(loop: Any) -> Any:
        realize = loop.body
        if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(realize, SBlockRealize):
            return loop
        if realize.block.name_hint not in updates:
            return loop
        asked = [
            ask(source, [*others, last + _whole_rows(source, int(source.shape[-1]), _AHEAD_BYTES)], L1)
            for source, (*others, last) in _read_at(realize, _zero([loop]), func.params)
        ]
        return tirx.SeqStmt([*asked, loop]) if asked else loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, insert)))


def prefetch_coming_rows(func: PrimFunc, first: str, length: int) -> PrimFunc:
    """`func` asking for a row to come while it makes its later passes over a row.

    In those nothing would be fetched, and a first pass that asks as well as waits has both at once. Each asks for its
    share of the row, with every vector. Where there is one pass only, it asks for all.

    Args:
        first: name of the block that reads a row first.
        length: elements of a row.

    Unchanged where that block reads what another one made of the row.
    """
    (rows,) = (stage for stage in root_stages(func) if holds(stage, first))
    stages = list(rows.body.seq)
    begin = next(at for at, stage in enumerate(stages) if holds(stage, first))
    starts = _read_first(stages[begin], first, func.params)
    if not starts:
        return func
    askers = [at for at in range(begin + 1, len(stages)) if _steps(stages[at])] or [begin]
    share = -(-length // len(askers))
    for part, at in enumerate(askers):
        loops = _steps(stages[at])
        each = -(-share // prod(int(loop.extent) for loop in loops))
        step: Any = tirx.IntImm("int64", 0)
        for loop in loops:
            step = step * loop.extent + loop.loop_var
        body = loops[-1].body
        asked = []
        for source, (*others, last) in starts:
            line = _LINE_BYTES // tvm_ffi.dtype(str(source.dtype)).itemsize
            begins = last + _whole_rows(source, length, _ROWS_AHEAD_BYTES) + part * share + step * each
            asked += [ask(source, [*others, begins + i], L1) for i in range(0, each, line)]
        body = tirx.SeqStmt([*asked, *(body.seq if isinstance(body, tirx.SeqStmt) else [body])])
        for loop in reversed(loops):
            body = with_body(loop, body)
        stages[at] = body
    asks = with_body(rows, tirx.SeqStmt(stages))
    return with_stages(func, [asks if s.same_as(rows) else s for s in root_stages(func)], func.body.block.alloc_buffers)


def prefetch_windows(func: PrimFunc, update: str, rows: Any, tiles: Any, channels: int) -> PrimFunc:
    """`func` asking, for every tile, for the pixels behind that no window has read: those of a window's last rows.

    The hardware begins anew on every row, and sees the rows that come from cache beside the one that does not.

    Args:
        update: name of the block that reads a parameter, `[..., h, w, c]`, through windows, unrolled.
        rows, tiles: the loops over rows, and over tiles of a row with `channels` channels.

    Unchanged where what is read is no parameter but its padded copy, or where a table says where it lies.
    """
    (realize,) = (r for r in found(tiles, SBlockRealize) if r.block.name_hint == update)
    reduced = {v for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)
               if int(axis.iter_type) == tirx.IterVar.CommReduce for v in variables(value)}  # fmt: skip
    last = {
        loop.loop_var: loop.extent - 1 if loop.loop_var in reduced else tirx.IntImm("int64", 0)
        for loop in found(tiles.body, tirx.For)
    }
    read = _read_at(realize, last, func.params)
    if not read:
        return func
    source, (*others, row, pixel, channel) = read[0]
    if found([row, pixel], ir.TensorLoad):
        return func
    itemsize = tvm_ffi.dtype(str(source.dtype)).itemsize
    away = -(-_AHEAD_BYTES // (itemsize * int(source.shape[-1])))
    asked = [
        ask(source, [*others, row - r, pixel + (away + p), channel + c], L1)
        for r in range(_advance(row, rows))
        for p in range(_advance(pixel, tiles))
        for c in range(0, channels, _LINE_BYTES // itemsize)
    ]
    asking = with_body(tiles, tirx.SeqStmt([*asked, *tiles.body.seq]))
    return func.with_body(
        tvm_ffi.structural_map(func.body, (tirx.For, lambda loop: asking if loop.same_as(tiles) else loop))
    )


def _advance(index: Any, loop: Any) -> int:
    """By how much an index grows with every step of a loop."""
    first, second = (substitute(index, {loop.loop_var: tirx.IntImm("int64", step)}) for step in (0, 1))
    return int(tvm.sym.Analyzer().simplify(second - first))


def _steps(stage: Any) -> list[Any]:
    """The serial loops of a pass over a row in vectors; none of a stage that is something else."""
    loops, inside = [], stage
    while isinstance(inside, tirx.For) and inside.kind == tirx.ForKind.SERIAL:
        loops.append(inside)
        inside = inside.body
    return loops if any(loop.kind == tirx.ForKind.VECTORIZED for loop in found(inside, tirx.For)) else []


def _read_first(stage: Any, name: str, params: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """As `_read_at`, of the block called `name` when it runs for the first time."""
    (realize,) = (r for r in found(stage, SBlockRealize) if r.block.name_hint == name)
    return _read_at(realize, _zero(found(stage, tirx.For)), params)


def _zero(loops: Sequence[Any]) -> dict[Any, Any]:
    return {loop.loop_var: tirx.IntImm("int64", 0) for loop in loops}


def _read_at(realize: Any, at: Mapping[Any, Any], params: Sequence[Any]) -> list[tuple[Any, list[Any]]]:
    """The parameters that a block reads most of, each with its indices where variables have the values `at`."""
    axes = {axis.var: value for axis, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    read = (load for load in found(realize.block.body.value, ir.TensorLoad) if load.indices)
    given = [load for load in read if any(load.source.same_as(param) for param in params)]
    largest = max((_nbytes(load.source) for load in given), default=0)
    places: dict[Any, list[Any]] = {}
    for load in given:
        if 2 * _nbytes(load.source) >= largest and load.source not in places:
            places[load.source] = [substitute(substitute(index, axes), at) for index in load.indices]
    return list(places.items())


def _whole_rows(source: Any, length: int, nbytes: int) -> Any:
    """Elements of the fewest rows that are `nbytes` or more."""
    row = length * tvm_ffi.dtype(str(source.dtype)).itemsize
    return tirx.IntImm("int64", length * -(-nbytes // row))


def _nbytes(buffer: Any) -> int:
    return prod(int(extent) for extent in buffer.shape) * tvm_ffi.dtype(str(buffer.dtype)).itemsize


def ask(source: Any, indices: Sequence[Any], locality: int, writes: bool = False) -> tirx.Evaluate:
    """The statement that asks for the line where `source` has the element at `indices`, which may lie outside."""
    address = tirx.address_of(tirx.BufferLoad(source, list(indices)))
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, int(writes), locality, 1))


def _insert(
    stmt: tirx.Stmt, loops: list[Any], kernel: MicroKernel, made: Callable[[Sequence[Any], Any], Sequence[Any]]
) -> Any:
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_insert(s, loops, kernel, made) if holds(s, kernel.update) else s for s in stmt.seq])
    assert isinstance(stmt, tirx.For), type(stmt)
    loops = [*loops, stmt]
    if len(loops) == kernel.depth + kernel.reduce:
        return with_body(stmt, tirx.SeqStmt([*made(loops, stmt.body), stmt.body]))
    return with_body(stmt, _insert(stmt.body, loops, kernel, made))


def _asked(loops: Sequence[Any], tile: Any, panels: Any, kernel: MicroKernel, into: int) -> list[Any]:
    """Of the next panel, this step's share: as many elements as let all steps together cover it."""
    itemsize = tvm_ffi.dtype(str(panels.dtype)).itemsize
    line, width = _LINE_BYTES // itemsize, int(panels.shape[-1])
    unrolled = []
    while isinstance(tile, tirx.For):
        unrolled.append(tile)
        tile = tile.body
    axes = {axis.var: value for axis, value in zip(tile.block.iter_vars, tile.iter_values, strict=True)}
    (load,) = (load for load in found(tile.block.body.value, ir.TensorLoad) if load.source.same_as(panels))

    def at(start: Mapping[Any, Any]) -> list[Any]:
        return [substitute(substitute(index, axes), start) for index in load.indices]

    over_rows = loops[kernel.depth - kernel.rows : kernel.depth]
    all_passes = prod(int(loop.extent) for loop in over_rows)
    passes = min(kernel.passes or all_passes, all_passes)

    def first(asked: list[Any]) -> list[Any]:
        """In the first passes alone, if not in all."""
        if passes == all_passes:
            return asked
        body = asked[0] if len(asked) == 1 else tirx.SeqStmt(asked)
        return [tirx.IfThenElse(_counted(over_rows) < tirx.IntImm("int64", passes), body, None)]

    which = len(panels.shape) - 2 - kernel.reduce

    def beyond(indices: Sequence[Any], count: int) -> list[Any]:
        """`count` panels further."""
        return [index + count if dim == which and count else index for dim, index in enumerate(indices)]

    if passes == 1:
        *others, last = at(_zero(unrolled))
        ahead = _STREAM_AHEAD_BYTES // itemsize
        asked = [[*beyond(others, j), last + (ahead + i)] for j in range(kernel.panels) for i in range(0, width, line)]
        return first([ask(panels, indices, L1) for indices in asked])
    *others, _ = at(_zero([*loops[kernel.depth :], *unrolled]))
    others = beyond(others, kernel.ahead)
    step = _counted(loops[kernel.depth - kernel.rows :])
    share = -(-width * kernel.panels // passes)
    if share > line:
        share = -(-share // line) * line
    return first([ask(panels, [*others, step * share + i], into) for i in range(0, share, line)])


def _counted(loops: Sequence[Any]) -> Any:
    """Steps of a nest that are done."""
    step: Any = tirx.IntImm("int64", 0)
    for loop in loops:
        step = step * loop.extent + loop.loop_var
    return step
