"""The loops of windows over planes, written out: no schedule primitive makes tiles that overlap.

for images, groups of planes of C that are made of the same of A, parts of a group, bands of rows (parallel):
  what the windows of the band read, with its padding  ->  staged, of `stride` columns each in a plane of its own
  for blocks of `nr` planes of C, tiles of `mr` rows x `vectors` vectors of x:  acc in registers
    for planes of A, ky, kx:  acc = reduce(acc, staged)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import ceil, prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym.analyzer import Analyzer

from subtune.backends.base import OUTER
from subtune.backends.cpu.family import MODE, REGISTERS
from subtune.patterns.planes import Border, Planes
from subtune.tir import statements
from subtune.tir.expressions import loads
from subtune.tir.statements import integer, sequence
from subtune.tir.substitute import substitute

_UNROLLED_TAPS = 9


@dataclass(frozen=True, slots=True)
class Knobs:
    """Bands of `band` rows; tiles of `mr` rows of `vectors` vectors, of each of `nr` planes, in registers.

    Of what is staged once, `results` planes are made.
    """

    band: int = field(metadata=OUTER)
    mr: int = field(metadata=REGISTERS)
    vectors: int = field(metadata=REGISTERS)
    nr: int = field(default=1, metadata=REGISTERS)
    results: int = field(default=1, metadata=OUTER)
    serial: bool = field(default=False, metadata=MODE)


@dataclass(frozen=True, slots=True)
class _Grain:
    """What one thread makes at a time.

    Attributes:
        outer: where it lies along the axes before the group's.
        shared: the first plane of C of its group, which says what is read.
        result: its own first one.
        top: its first row.
    """

    outer: tuple[Any, ...]
    shared: Any
    result: Any
    top: Any


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of a grain: its first plane of C, its first row of the band, and where its vectors begin."""

    grain: _Grain
    result: Any
    row: Any
    starts: tuple[Any, ...]

    def at(self, j: int, i: int, v: int, lane: Any) -> tuple[Any, ...]:
        """Where an element lies in C."""
        y = self.grain.top + self.row + integer(i)
        return (*self.grain.outer, self.result + integer(j), y, self.starts[v] + lane)


class Writer:
    """Writes the loop over bands: staging, then tiles."""

    def __init__(
        self, info: Planes, anchor: Any, outputs: list[Any], edge: Border | None, knobs: Knobs, lanes: int,
        is_output: bool,
    ) -> None:  # fmt: skip
        """`is_output`: what the anchor makes is one of the function's results."""
        self._info, self._anchor, self._outputs, self._is_output = info, anchor, outputs, is_output
        self._edge, self._knobs, self._lanes = edge, knobs, lanes
        (self._down, self._along), (reach_y, reach_x) = info.slides, info.reach
        self._rows = (knobs.band - 1) * self._down.stride + reach_y
        self._columns = (info.shape[-1] - 1) * self._along.stride + reach_x
        self._is_staged = edge is not None or self._along.stride > 1
        stride = self._along.stride
        staged = [info.depth, stride, self._rows, ceil(self._columns / stride)]
        self._staged = statements.buffer("staged", staged, dtype=str(info.window.dtype))
        self._acc = statements.buffer("acc", [knobs.nr, knobs.mr, knobs.vectors, lanes], "local")

    def stage(self) -> Any:
        info, knobs = self._info, self._knobs
        loop = statements.serial if knobs.serial else statements.parallel
        extents = [*info.shape[:-3], info.groups, info.shared // knobs.results, info.shape[-2] // knobs.band]

        def grain(at: Any) -> Any:
            place: list[Any] = []
            for extent in reversed(extents):
                place.append(tirx.floormod(at, integer(extent)))
                at = tirx.floordiv(at, integer(extent))
            band, part, group, *outer = place
            shared = group * integer(info.shared)
            result = shared + part * integer(knobs.results)
            return self._realize(
                self._grain(_Grain(tuple(reversed(outer)), shared, result, band * integer(knobs.band)))
            )

        return loop(prod(extents), grain)

    def _realize(self, body: Any) -> SBlockRealize:
        blocks = [self._anchor, *self._outputs]
        inner = [self._anchor.body.buffer, self._info.window] if not self._is_output else [self._info.window]
        own = {} if self._edge is None else {self._edge.source: None}
        reads = {load.source: None for block in blocks for load in loads(block.body.value)} | own
        if self._edge is None:
            inner.remove(self._info.window)
        writes = [block.body.buffer for block in blocks if block is not self._anchor or self._is_output]
        regions = [
            [tirx.BufferRegion(b, [ir.Range(integer(0), d) for d in b.shape]) for b in buffers]
            for buffers in ([b for b in reads if not any(b.same_as(i) for i in [*inner, *writes])], writes)
        ]
        local = [self._acc, *([self._staged] if self._is_staged else [])]
        return SBlockRealize([], True, SBlock([], *regions, "planes", body, None, local))

    def _grain(self, grain: _Grain) -> Any:
        """Staging, and blocks of planes of tiles; the last block and the last vectors overlap their neighbours."""
        knobs, lanes, width = self._knobs, self._lanes, self._info.shape[-1]

        def first(block: Any, size: int, whole: int) -> Any:
            return (
                block * integer(size) if whole % size == 0 else tirx.Min(block * integer(size), integer(whole - size))
            )

        def tile(block: Any, row: Any, group: Any) -> Any:
            starts = [first(group * integer(knobs.vectors) + integer(v), lanes, width) for v in range(knobs.vectors)]
            result = grain.result + first(block, knobs.nr, knobs.results)
            return self._tile(_Tile(grain, result, row * integer(knobs.mr), tuple(starts)))

        extents = ceil(knobs.results / knobs.nr), knobs.band // knobs.mr, ceil(width / lanes) // knobs.vectors
        tiles = _nested(extents, tile)
        return sequence(self._fill(grain), tiles) if self._is_staged else tiles

    def _fill(self, grain: _Grain) -> Any:
        """The rows that the band's windows read; columns with the same remainder by the stride are neighbours."""
        stride = self._along.stride
        top = grain.top * integer(self._down.stride)

        def columns(depth: Any, row: Any, phase: int, begin: int, end: int, value: Any) -> list[Any]:
            """The columns of one remainder in [begin, end)."""
            low, high = max(0, -(-(begin - phase) // stride)), max(0, -(-(end - phase) // stride))
            if high <= low:
                return []
            return [
                statements.serial(high - low, lambda i: statements.store(
                    self._staged, value((i + integer(low)) * integer(stride) + integer(phase)),
                    depth, integer(phase), row, i + integer(low)))
            ]  # fmt: skip

        def line(depth: Any, row: Any) -> Any:
            y, plane = top + row, self._plane(grain, depth)
            parts = []
            if self._edge is None:
                for phase in range(stride):
                    read = lambda x: tirx.BufferLoad(self._info.window, [*plane, y, x])  # noqa: E731
                    parts += columns(depth, row, phase, 0, self._columns, read)
                return sequence(*parts)
            edge = self._edge
            (low, high), (left, right) = edge.spans

            def inside(x: Any) -> Any:
                return substitute(edge.inside, dict(zip(edge.axes, (*plane, y, x), strict=True)))

            outside = []
            for phase in range(stride):
                parts += columns(depth, row, phase, 0, min(left, self._columns), lambda x: edge.value)
                parts += columns(depth, row, phase, left, min(right, self._columns), inside)
                parts += columns(depth, row, phase, right, self._columns, lambda x: edge.value)
                outside += columns(depth, row, phase, 0, self._columns, lambda x: edge.value)
            is_inside = tirx.And(integer(low) <= y, y < integer(high))
            return tirx.IfThenElse(is_inside, sequence(*parts), sequence(*outside))

        return _nested((self._info.depth, self._rows), line)

    def _tile(self, tile: _Tile) -> Any:
        """Accumulators: begun, reduced over planes and window, stored."""
        knobs = self._knobs

        def each(body: Callable[[int, int, int, Any], Any]) -> list[Any]:
            places = list(product(range(knobs.nr), range(knobs.mr), range(knobs.vectors)))
            if knobs.nr < knobs.mr * knobs.vectors:  # fewer weights than vectors: the weights stay in registers
                places.sort(key=lambda place: place[1:])
            return [statements.vectorized(self._lanes, partial(body, *place)) for place in places]

        def begin(j: int, i: int, v: int, lane: Any) -> Any:
            return statements.store(self._acc, self._anchor.init.value, j, i, v, lane)

        def tap(depth: Any, y: Any, x: int) -> Any:
            return sequence(*each(partial(self._step, tile, (depth, y, x))))

        def end(j: int, i: int, v: int, lane: Any) -> Any:
            return self._end(tile, (j, i, v, lane))

        return sequence(*each(begin), self._reduced(tap), *each(end))

    def _reduced(self, tap: Callable[[Any, Any, int], Any]) -> Any:
        """`tap` for all planes and taps: unrolled, as many as there are not too many of."""
        depth, (ky, kx) = self._info.depth, self._info.taps

        def row(d: Any, y: Any) -> Any:
            return sequence(*(tap(d, y, x) for x in range(kx)))

        def plane(d: Any) -> Any:
            if ky * kx > _UNROLLED_TAPS:
                return statements.serial(ky, partial(row, d))
            return sequence(*(row(d, integer(y)) for y in range(ky)))

        if depth * ky * kx > _UNROLLED_TAPS:
            return statements.serial(depth, plane)
        return sequence(*(plane(integer(d)) for d in range(depth)))

    def _step(self, tile: _Tile, tap: tuple[Any, Any, int], j: int, i: int, v: int, lane: Any) -> Any:
        """One element's next value."""
        axes = [iv.var for iv in self._anchor.iter_vars]
        at = dict.fromkeys(axes, integer(0)) | dict(zip(axes, tile.at(j, i, v, lane), strict=False))
        depth, y, x = tap
        at |= {axes[self._down.tap]: y, axes[self._along.tap]: integer(x)}
        if self._info.deep >= 0:
            at[axes[self._info.deep]] = depth
        source = self._read(tile.grain, tile.row + integer(i), tile.starts[v] + lane, tap)
        value = self._replaced(self._anchor.body.value, at, (j, i, v, lane), source)
        return statements.store(self._acc, value, j, i, v, lane)

    def _end(self, tile: _Tile, place: tuple[int, int, int, Any]) -> Any:
        """One element's stores, of what follows the windows as well."""
        at = tile.at(*place)
        stores = []
        if self._is_output:
            stores.append(statements.store(self._anchor.body.buffer, statements.load(self._acc, *place), *at))
        for block in self._outputs:
            here = dict(zip((iv.var for iv in block.iter_vars), at, strict=True))
            stores.append(statements.store(block.body.buffer, self._replaced(block.body.value, here, place), *at))
        return sequence(*stores)

    def _read(self, grain: _Grain, row: Any, x: Any, tap: tuple[Any, Any, int]) -> Any:
        """What the window of output (row of the band, x) reads for one tap."""
        depth, tap_y, tap_x = tap
        y = row * integer(self._down.stride) + tap_y * integer(self._down.dilation)
        shift, phase = divmod(tap_x * self._along.dilation, self._along.stride)
        if self._is_staged:
            return statements.load(self._staged, depth, phase, y, x + integer(shift))
        at = grain.top * integer(self._down.stride) + y, x + integer(shift)
        return tirx.BufferLoad(self._info.window, [*self._plane(grain, depth), *at])

    def _plane(self, grain: _Grain, depth: Any) -> list[Any]:
        """The plane at `depth` of those that the windows of the grain slide over."""
        axes = [iv.var for iv in self._anchor.iter_vars]
        at = dict.fromkeys(axes, integer(0)) | dict(zip(axes, (*grain.outer, grain.shared), strict=False))
        if self._info.deep >= 0:
            at[axes[self._info.deep]] = depth
        return [Analyzer().simplify(substitute(index, at)) for index in self._info.plane]

    def _replaced(self, value: Any, at: Mapping[Any, Any], place: tuple[int, int, int, Any], source: Any = None) -> Any:
        """`value` with the anchor's result in its register, what the window reads where it lies, variables named."""

        def moved(load: ir.TensorLoad) -> Any:
            if load.source.same_as(self._anchor.body.buffer):
                return statements.load(self._acc, *place)
            if source is not None and load.source.same_as(self._info.window):
                return source
            return tirx.BufferLoad(load.source, [substitute(index, at) for index in load.indices])

        return tvm_ffi.structural_map(value, [(ir.TensorLoad, moved), (ir.Var, lambda var: at.get(var, var))])


def _nested(extents: tuple[int, ...], body: Callable[..., Any], *outer: Any) -> Any:
    """Serial loops, one in the other."""
    if not extents:
        return body(*outer)
    return statements.serial(extents[0], lambda at: _nested(extents[1:], body, *outer, at))
