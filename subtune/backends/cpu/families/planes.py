"""Windows over planes: pooling and depthwise convolution with channels first, where nothing asks for channels last.

    for planes, bands of their rows (parallel):
      what the windows of the band read, with its padding  ->  staged, of `stride` columns each in a plane of its own
      for tiles of `mr` rows x `vectors` vectors of x:  acc in registers;  for ky, kx: acc = reduce(acc, staged)

Vectors lie along x. A column's plane makes what a strided window reads for one tap contiguous. The last vector of a row
overlaps its neighbour where the width is no multiple: it computes the same values. Without padding and stride the
input itself is read. The function is written, not scheduled: no schedule primitive makes tiles that overlap.
Source: MLAS' and XNNPACK's depthwise kernels for channels first (dwconv2d-chw).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import ceil, prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from subtune.backends.base import OUTER, Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import LOADS_PER_CYCLE, stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.family import MODE, REGISTERS, SERIAL, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.planes import Border, Planes, border, planes
from subtune.patterns.rows import Rowwise
from subtune.patterns.stages import Stages, anchored
from subtune.tir import statements
from subtune.tir.blocks import with_stages
from subtune.tir.expressions import is_load_of, loads
from subtune.tir.statements import integer, sequence
from subtune.tir.substitute import substitute

_LEAST_WIDTH = 4
_MOST_STRIDE = 4
_MAX_STAGED = 65536  # elements of a band: they are to stay in L2
_UNROLLED_TAPS = 9
_TILE_CYCLES = 10.0  # beginning and ending a tile


@dataclass(frozen=True, slots=True)
class Knobs:
    """Bands of `band` rows; tiles of `mr` rows of `vectors` vectors in registers."""

    band: int = field(metadata=OUTER)
    mr: int = field(metadata=REGISTERS)
    vectors: int = field(metadata=REGISTERS)
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if not isinstance(problem.pattern, Rowwise):
        return "no windows over planes"
    found = anchored(problem.workload, planes)
    if isinstance(found, NotApplicable):
        return found.reason
    info = found[2]
    if info.shape[-1] < _LEAST_WIDTH or info.slides[1].stride > _MOST_STRIDE:
        return "rows too short for vectors, or strides too long"
    return ""


def lanes_for(width: int, lanes: int) -> int:
    """The widest vectors that a row of `width` elements fills."""
    while lanes > width:
        lanes //= 2
    return lanes


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Bands of all rows, a half, a quarter; tiles whose accumulators fit the registers."""
    found = anchored(problem.workload, planes)
    assert not isinstance(found, NotApplicable), "accepts() has read it"
    info, device = found[2], problem.device
    height, width = info.shape[-2:]
    pieces = ceil(width / lanes_for(width, device.lanes()))
    proposed = []
    for band in (b for b in range(1, height + 1) if height % b == 0 and (b == height or b >= 7)):
        if _staged_size(info, band) > _MAX_STAGED:
            continue
        for mr in (m for m in range(1, 9) if band % m == 0):
            for vectors in (v for v in range(1, 9) if pieces % v == 0):
                if mr * vectors + 3 <= device.vector_registers:
                    knobs = Knobs(band, mr, vectors)
                    proposed.append(Candidate.of("planes", knobs, _predict(info, problem.workload, device, knobs)))
    return proposed


def _staged_size(info: Planes, band: int) -> int:
    down = info.slides[0]
    width = (info.shape[-1] - 1) * info.slides[1].stride + info.reach[1]
    return ((band - 1) * down.stride + info.reach[0]) * width


def _predict(info: Planes, workload: Any, device: CPUModel, knobs: Knobs) -> float:
    """Seconds: staging, the vectors' arithmetic and loads, or the bytes, whichever takes longer."""
    height, width = info.shape[-2:]
    lanes = lanes_for(width, device.lanes())
    grains = prod(info.shape[:-2]) * height // knobs.band
    uneven = imbalance(grains, device)
    tiles = (knobs.band // knobs.mr) * ceil(width / lanes) // knobs.vectors
    vectors = knobs.mr * knobs.vectors
    per_tap = max(vectors / 2.0, (vectors + 1) / LOADS_PER_CYCLE, float(device.fma_latency))
    cycles = tiles * (prod(info.taps) * per_tap + vectors + _TILE_CYCLES)
    cycles += 2.0 * info.slides[1].stride * _staged_size(info, knobs.band) / lanes
    busy = grains * cycles / device.cycles_per_s / device.threads
    return max(busy, stream_s(workload.nbytes, device)) * uneven + grains * device.calibration.grain_s


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, planes)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    height, width = info.shape[-2:]
    lanes = lanes_for(width, problem.device.lanes())
    if height % knobs.band or knobs.band % knobs.mr or ceil(width / lanes) % knobs.vectors:
        return NotApplicable("the tile does not divide the output")
    return _write(sch, stages, info, knobs, lanes)


def _write(sch: Schedule, stages: Stages, info: Planes, knobs: Knobs, lanes: int) -> Kernel | NotApplicable:
    anchor = sch.get(stages.anchors[0])
    outputs = [sch.get(rv) for rv in stages.outputs]
    is_output = any(anchor.body.buffer.same_as(param) for param in sch.mod["main"].params)
    if any(list(block.body.indices) != [iv.var for iv in block.iter_vars] for block in outputs) or any(
        is_load_of(load, anchor.body.buffer) and list(load.indices) != list(block.body.indices)
        for block in outputs
        for load in loads(block.body.value)
    ):
        return NotApplicable("an output is not computed element by element from the window's")
    edge: Border | None = None
    if len(stages.producers) > 1:
        return NotApplicable("more than one stage before the windows")
    if stages.producers:
        pad = sch.get(stages.producers[0])
        read = border(pad)
        if isinstance(read, NotApplicable) or not pad.body.buffer.same_as(info.window):
            return NotApplicable(read.reason if isinstance(read, NotApplicable) else "a stage that is no padding")
        edge = read
    writer = _Writer(info, anchor, outputs, is_output, edge, knobs, lanes)
    return Kernel(with_stages(sch.mod["main"], [writer.stage()], []))


class _Writer:
    """Writes the loop over bands: staging, then tiles."""

    def __init__(
        self, info: Planes, anchor: Any, outputs: list[Any], is_output: bool, edge: Border | None, knobs: Knobs,
        lanes: int,
    ) -> None:  # fmt: skip
        self._info, self._anchor, self._outputs, self._is_output = info, anchor, outputs, is_output
        self._edge, self._knobs, self._lanes = edge, knobs, lanes
        (self._down, self._along), (reach_y, reach_x) = info.slides, info.reach
        self._rows = (knobs.band - 1) * self._down.stride + reach_y
        self._columns = (info.shape[-1] - 1) * self._along.stride + reach_x
        self._is_staged = edge is not None or self._along.stride > 1
        stride = self._along.stride
        self._staged = statements.buffer(
            "staged", [stride, self._rows, ceil(self._columns / stride)], dtype=str(info.window.dtype)
        )
        self._acc = statements.buffer("acc", [knobs.mr, knobs.vectors, lanes], "local")

    def stage(self) -> Any:
        info, knobs = self._info, self._knobs
        bands = info.shape[-2] // knobs.band
        loop = statements.serial if knobs.serial else statements.parallel

        def grain(at: Any) -> Any:
            first = tirx.floormod(at, integer(bands)) * integer(knobs.band)
            rest, outer = tirx.floordiv(at, integer(bands)), []
            for extent in reversed(info.shape[:-2]):
                outer.append(tirx.floormod(rest, integer(extent)))
                rest = tirx.floordiv(rest, integer(extent))
            return self._realize(self._grain(tuple(reversed(outer)), first))

        return loop(prod(info.shape[:-2]) * bands, grain)

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

    def _grain(self, outer: tuple[Any, ...], first: Any) -> Any:
        knobs, lanes = self._knobs, self._lanes
        width = self._info.shape[-1]
        groups = ceil(width / lanes) // knobs.vectors

        def tile(row: Any, group: Any) -> Any:
            starts = [(group * integer(knobs.vectors) + integer(v)) * integer(lanes) for v in range(knobs.vectors)]
            if width % lanes:
                starts = [tirx.Min(start, integer(width - lanes)) for start in starts]
            return self._tile(outer, first, row, starts)

        tiles = statements.serial(
            knobs.band // knobs.mr,
            lambda i: statements.serial(groups, lambda group: tile(i * integer(knobs.mr), group)),
        )
        return sequence(self._fill(outer, first), tiles) if self._is_staged else tiles

    def _fill(self, outer: tuple[Any, ...], first: Any) -> Any:
        """The rows that the band's windows read; columns with the same remainder by the stride are neighbours."""
        stride, plane = self._along.stride, self._plane(outer)
        top = first * integer(self._down.stride)

        def columns(row: Any, phase: int, begin: int, end: int, value: Any) -> list[Any]:
            """The columns of one remainder in [begin, end)."""
            low, high = max(0, -(-(begin - phase) // stride)), max(0, -(-(end - phase) // stride))
            if high <= low:
                return []
            return [
                statements.serial(high - low, lambda i: statements.store(
                    self._staged, value((i + integer(low)) * integer(stride) + integer(phase)),
                    integer(phase), row, i + integer(low)))
            ]  # fmt: skip

        def line(row: Any) -> Any:
            y = top + row
            parts = []
            if self._edge is None:
                for phase in range(stride):
                    read = lambda x: tirx.BufferLoad(self._info.window, [*plane, y, x])  # noqa: E731
                    parts += columns(row, phase, 0, self._columns, read)
                return sequence(*parts)
            edge = self._edge
            (low, high), (left, right) = edge.spans

            def inside(x: Any) -> Any:
                return substitute(edge.inside, dict(zip(edge.axes, (*plane, y, x), strict=True)))

            outside = []
            for phase in range(stride):
                parts += columns(row, phase, 0, min(left, self._columns), lambda x: edge.value)
                parts += columns(row, phase, left, min(right, self._columns), inside)
                parts += columns(row, phase, right, self._columns, lambda x: edge.value)
                outside += columns(row, phase, 0, self._columns, lambda x: edge.value)
            is_inside = tirx.And(integer(low) <= y, y < integer(high))
            return tirx.IfThenElse(is_inside, sequence(*parts), sequence(*outside))

        return statements.serial(self._rows, line)

    def _tile(self, outer: tuple[Any, ...], first: Any, row: Any, starts: list[Any]) -> Any:
        """Accumulators of `mr` rows by the vectors at `starts`: begun, reduced over the window, stored."""
        ky, kx = self._info.taps
        spatial = [iv.var for iv in self._anchor.iter_vars[: len(self._info.shape)]]
        units = {iv.var: integer(0) for iv in self._anchor.iter_vars[len(self._info.shape) :]}

        def each(body: Any) -> list[Any]:
            tile = product(range(self._knobs.mr), enumerate(starts))
            return [statements.vectorized(self._lanes, partial(body, i, v, start)) for i, (v, start) in tile]

        def values(i: int, start: Any, lane: Any) -> dict[Any, Any]:
            return dict(zip(spatial, (*outer, first + row + integer(i), start + lane), strict=True))

        def begin(i: int, v: int, start: Any, lane: Any) -> Any:
            return statements.store(self._acc, self._anchor.init.value, i, v, lane)

        def tap(y: Any, x: int) -> Any:
            taps = {**units, self._anchor.iter_vars[self._down.tap].var: y}
            taps[self._anchor.iter_vars[self._along.tap].var] = integer(x)

            def step(i: int, v: int, start: Any, lane: Any) -> Any:
                source = self._read(outer, first, row + integer(i), start + lane, y, x)
                value = self._replaced(
                    self._anchor.body.value, {**values(i, start, lane), **taps}, (i, v, lane), source
                )
                return statements.store(self._acc, value, i, v, lane)

            return sequence(*each(step))

        def taps_of(y: Any) -> Any:
            return sequence(*(tap(y, x) for x in range(kx)))

        if ky * kx <= _UNROLLED_TAPS:
            window = sequence(*(taps_of(integer(y)) for y in range(ky)))
        else:
            window = statements.serial(ky, taps_of)

        def end(i: int, v: int, start: Any, lane: Any) -> Any:
            at = (*outer, first + row + integer(i), start + lane)
            stores = [statements.store(self._anchor.body.buffer, statements.load(self._acc, i, v, lane), *at)]
            stores = stores if self._is_output else []
            for block in self._outputs:
                here = dict(zip((iv.var for iv in block.iter_vars), at, strict=True))
                stores.append(
                    statements.store(block.body.buffer, self._replaced(block.body.value, here, (i, v, lane)), *at)
                )
            return sequence(*stores)

        return sequence(*each(begin), window, *each(end))

    def _read(self, outer: tuple[Any, ...], first: Any, row: Any, x: Any, tap_y: Any, tap_x: int) -> Any:
        """What the window of output (row of the band, x) reads for one tap."""
        y = row * integer(self._down.stride) + tap_y * integer(self._down.dilation)
        phase, shift = (
            tap_x * self._along.dilation % self._along.stride,
            tap_x * self._along.dilation // self._along.stride,
        )
        if self._is_staged:
            return statements.load(self._staged, phase, y, x + integer(shift))
        at = first * integer(self._down.stride) + y, x + integer(shift)
        return tirx.BufferLoad(self._info.window, [*self._plane(outer), *at])

    def _plane(self, outer: tuple[Any, ...]) -> list[Any]:
        """The plane that the windows of one of C's slide over."""
        axes = [iv.var for iv in self._anchor.iter_vars]
        at = {axis: integer(0) for axis in axes} | dict(zip(axes, outer, strict=False))
        return [substitute(index, at) for index in self._info.plane]

    def _replaced(self, value: Any, at: Mapping[Any, Any], tile: tuple[int, int, Any], source: Any = None) -> Any:
        """`value` with the anchor's result in its register, what the window reads where it lies, variables named."""

        def place(load: ir.TensorLoad) -> Any:
            if load.source.same_as(self._anchor.body.buffer):
                return statements.load(self._acc, *tile)
            if source is not None and load.source.same_as(self._info.window):
                return source
            return tirx.BufferLoad(load.source, [substitute(index, at) for index in load.indices])

        return tvm_ffi.structural_map(value, [(ir.TensorLoad, place), (ir.Var, lambda var: at.get(var, var))])


FAMILY = Family("planes", 3, Knobs, accepts, candidates, schedule, (SERIAL,))
