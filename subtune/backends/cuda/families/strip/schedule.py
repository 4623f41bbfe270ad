"""Windows on a GPU by strips, channels last: what a thread reads of a row serves all taps and pixels that want it.

    a thread: `lanes` neighbouring channels of `rows` x `cols` output pixels, their sums in float32 registers
      for row of the input that any of them reads, for piece of the window's columns:     loops
        the row's pixels, each read and widened once
        for tap of the piece, for pixel:  sum += weight * pixel                            unrolled

Where results share a channel (a depthwise convolution with a multiplier) it is read once for all of them.

Padding is registers of zeros that no load has written. Rows above one another share what is read where the window is
not dilated along them. A maximum or a sum without weights is taken along the row first, then down the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.dependent_launch import STARTS_LATE
from subtune.backends.cuda.source.axes import substituted
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import (
    Lanes,
    Unsupported,
    decoded,
    not_applicable,
    wide,
    widened_constant,
)
from subtune.backends.cuda.source.packed import Packed
from subtune.backends.cuda.source.results import Results
from subtune.backends.cuda.source.stages import combination
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.stages import Stages, anchored
from subtune.patterns.window import Window, shared_window
from subtune.tir.expressions import loads, variables

_MAX_REGISTERS = 160  # of sums, a row's pixels and a row's weights
_PIECE = 8  # columns of a window that is too wide to be unrolled
_WIDEST = 11


@dataclass(frozen=True, slots=True)
class StripKnobs:
    """`threads` of a block, `lanes` channels and `rows` times `cols` pixels of a thread."""

    threads: int
    lanes: int
    rows: int
    cols: int


def schedule(problem: Problem[CUDAModel], knobs: StripKnobs) -> Kernel | NotApplicable:
    try:
        found = anchored(problem.workload, shared_window)
        if isinstance(found, NotApplicable):
            return found
        sch, stages, info = found
        for pad in stages.producers:
            sch.compute_inline(pad)
        return _schedule(sch, stages, info, knobs, problem.numerics.exact)
    except (ScheduleError, Unsupported) as e:
        return not_applicable(e)


def _schedule(sch: Schedule, stages: Stages, info: Window, knobs: StripKnobs, exact: bool) -> Kernel | NotApplicable:
    anchor = sch.get(stages.anchors[0])
    shape = tuple(axis.extent for axis in info.axes if axis.role != "k")
    if info.of_role("n")[0].index != len(shape) - 1 or shape[-1] % knobs.lanes:
        return NotApplicable(f"{knobs.lanes} lanes do not divide the channels of {shape}")
    if len(shape) < 2 or knobs.cols > shape[-2] or knobs.rows > (shape[-3] if len(shape) > 2 else 1):
        return NotApplicable("the tile is larger than the output")
    outputs = [sch.get(output) for output in stages.outputs]
    packed = Packed.of(sch.mod["main"], info.to_pack, info.of_role("n")[0].index)
    taps = taps_of(anchor, packed)
    if knobs.rows > 1 and taps.dilation != 1:
        return NotApplicable("rows share nothing of a window that is dilated, or has no rows")
    width = min(taps.width, _PIECE) if taps.width > _WIDEST else taps.width
    pixels = len({j * taps.stride_w + t * taps.dilation_w for j in range(knobs.cols) for t in range(width)})
    held = knobs.rows * knobs.cols + pixels + (width if taps.weight is not None else 0)
    if held * knobs.lanes > _MAX_REGISTERS:
        return NotApplicable("a strip of more registers than a thread has")
    writer = _Writer(anchor, outputs, shape, knobs, taps, Code(exact))
    return packed.kernel(prim_func(sch.mod["main"], [writer.write()]).with_attr(STARTS_LATE, 1))


@dataclass(frozen=True, slots=True)
class Taps:
    """The window's axes as blocks have them: down the rows, along a row, the others; None: there is none.

    `data` is read for every pixel and tap, `weight` for every tap (None: the window has no weights).
    """

    data: Any
    weight: Any
    down: Any
    along: Any
    others: tuple[Any, ...]
    stride_h: int
    dilation: int
    stride_w: int
    dilation_w: int

    @property
    def height(self) -> int:
        return int(self.down.dom.extent) if self.down is not None else 1

    @property
    def width(self) -> int:
        return int(self.along.dom.extent) if self.along is not None else 1


def taps_of(anchor: Any, packed: Packed) -> Taps:
    """Raises Unsupported where what is read does not move with the pixel and the tap."""
    _, element, _ = combination(anchor)
    element = packed.moved(element)
    spatial = [iv.var for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
    reduced = [iv for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
    data, weight = element, None
    if isinstance(element, tirx.Mul):
        pixels = set(spatial[:-1])
        sides = [side for side in (element.a, element.b) if variables(side) & pixels]
        if len(sides) == 1:
            data = sides[0]
            weight = element.b if data.same_as(element.a) else element.a
    real = [iv for iv in reduced if int(iv.dom.extent) > 1]
    column, row = spatial[-2], spatial[-3] if len(spatial) > 2 else None
    along, stride_w, dilation_w = _moving(data, column, real)
    down, stride_h, dilation = _moving(data, row, real)
    moving = [iv.var for iv in (along, down) if iv is not None]
    others = tuple(iv for iv in reduced if iv.var not in moving)
    return Taps(data, weight, down, along, others, stride_h, dilation, stride_w, dilation_w)


def _moving(data: Any, pixel: Any, reduced: list[Any]) -> tuple[Any, int, int]:
    """The axis that moves what is read as `pixel` does, and by how much both move it; (None, 1, 1): none does."""
    found: tuple[Any, int, int] | None = None
    for one in loads(data):
        for index in one.indices:
            held = variables(index)
            with_it = [iv for iv in reduced if iv.var in held]
            if pixel is None or pixel not in held or not with_it:
                continue
            if len(with_it) > 1:
                raise Unsupported("an index of several axes of the window")
            moved = with_it[0], _step(index, pixel), _step(index, with_it[0].var)
            if found and not (found[0].same_as(moved[0]) and found[1:] == moved[1:]):
                raise Unsupported("what is read does not move as one")
            found = moved
    return found or (None, 1, 1)


def _step(index: Any, var: Any) -> int:
    """By how much `index` grows with `var`; it is the sum of a multiple of it and of others."""
    code = Code()
    zeros = dict.fromkeys(variables(index), const(0))
    values = [code.analyzer.simplify(substituted(index, zeros | {var: const(i)})) for i in (0, 1, 2)]
    if not all(isinstance(value, tirx.IntImm) for value in values):
        raise Unsupported("what is read does not move evenly")
    first, second, third = (int(value) for value in values)
    if second - first != third - second or second <= first:
        raise Unsupported("what is read does not move evenly")
    return second - first


class _Writer:
    def __init__(
        self, anchor: Any, outputs: list[Any], shape: tuple[int, ...], knobs: StripKnobs, taps: Taps, code: Code
    ) -> None:
        self._anchor, self._shape, self._knobs, self._taps, self._code = anchor, shape, knobs, taps, code
        self._results = Results(code, anchor, outputs, shape)
        self._combiner, _, self._identity = combination(anchor)
        self._spatial = [iv.var for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
        self._dtype = wide(str(anchor.body.buffer.dtype))

    def write(self) -> Any:
        code, knobs = self._code, self._knobs
        *outer, height, width, channels = (1,) * (3 - len(self._shape)) + self._shape
        tiles = (*outer, -(-height // knobs.rows), -(-width // knobs.cols), channels // knobs.lanes)
        total = prod(tiles)
        threads = min(knobs.threads, -(-total // 32) * 32)
        bx, tx = code.thread("blockIdx.x", -(-total // threads)), code.thread("threadIdx.x", threads)
        with code.when(tirx.LT(bx * threads + tx, const(total)) if total % threads else None):
            item = code.bind("item", bx * threads + tx, total)
            *images, y, x, chunk = decoded(item, tiles, code.analyzer)
            starts = []
            for name, at, step, extent in (("y", y, knobs.rows, height), ("x", x, knobs.cols, width)):
                first = at * step  # the last tile overlaps the one before it where the tile does not divide
                first = tirx.min(first, const(extent - step)) if extent % step else first
                starts.append(code.bind(name, first, extent - step + 1))
            images = [code.bind("n", image, extent) for image, extent in zip(images, outer, strict=True)]
            self._lane = code.variable("lane", knobs.lanes)
            channel = code.bind("chunk", chunk, channels // knobs.lanes) * knobs.lanes + self._lane
            self._place = lambda i, j: [*images, starts[0] + i, starts[1] + j, channel][-len(self._shape) :]
            self._sums = self._registers(knobs.rows * knobs.cols, "sum")
            self._over(list(self._taps.others), {})
            reader = Lanes(code, self._lane, knobs.lanes, self._results.known)
            for pixel, (i, j) in enumerate(product(range(knobs.rows), range(knobs.cols))):
                value = load(self._sums, const(pixel * knobs.lanes) + self._lane)
                self._results.store(reader, self._place(i, j), value)
        return code.kernel()

    def _registers(self, count: int, name: str) -> Any:
        """A value for each of so many pixels and all lanes, of what the reduction begins with."""
        made = self._code.local(self._dtype, count * self._knobs.lanes, name)
        self._begin(made, count)
        return made

    def _begin(self, registers: Any, count: int) -> None:
        with self._code.unrolled(count * self._knobs.lanes) as i:
            self._code.store(registers, i, widened_constant(self._identity))

    def _over(self, others: list[Any], chosen: dict[Any, Any]) -> None:
        """Loops over the axes of the window beside rows and columns, then over rows and pieces of columns."""
        code, taps = self._code, self._taps
        if others:
            if int(others[0].dom.extent) == 1:
                self._over(others[1:], chosen | {others[0].var: const(0)})
                return
            with code.serial(int(others[0].dom.extent)) as k:
                self._over(others[1:], chosen | {others[0].var: k})
            return
        rows = taps.height + (self._knobs.rows - 1) * taps.stride_h
        piece = taps.width if taps.width <= _WIDEST else _PIECE
        line = self._registers(self._knobs.cols, "line") if taps.weight is None else None
        with code.serial(rows) as row:
            if line is not None:
                self._begin(line, self._knobs.cols)
            if taps.width // piece > 1:
                with code.serial(taps.width // piece) as number:
                    self._row(row, number * piece, piece, chosen, line)
            else:
                self._row(row, const(0), piece, chosen, line)
            if taps.width % piece:
                self._row(row, const(taps.width // piece * piece), taps.width % piece, chosen, line)
            if line is not None:
                for i in range(self._knobs.rows):
                    with code.when(self._reads(row, i)), code.unrolled(self._knobs.cols * self._knobs.lanes) as v:
                        self._add(const(i * self._knobs.cols * self._knobs.lanes) + v, load(line, v))

    def _reads(self, row: Any, i: int) -> Any:
        """Whether output row `i` of the strip reads the row; None: always."""
        first, height = i * self._taps.stride_h, self._taps.height
        if self._knobs.rows == 1:
            return None
        return tirx.And(tirx.LE(const(first), row), tirx.LT(row, const(first + height)))

    def _add(self, at: Any, value: Any) -> None:
        self._code.store(self._sums, at, self._combiner(load(self._sums, at), value))

    def _row(self, row: Any, first: Any, count: int, chosen: dict[Any, Any], line: Any) -> None:
        """`count` columns of the window, from `first` on, over one row of the input."""
        code, taps, lanes, cols = self._code, self._taps, self._knobs.lanes, self._knobs.cols
        reader = Lanes(code, self._lane, lanes, self._results.known, zeroed=True)
        at = {j: {t: j * taps.stride_w + t * taps.dilation_w for t in range(count)} for j in range(cols)}
        there = {at[j][t]: (j, t) for j in at for t in at[j]}
        number = {position: i for i, position in enumerate(sorted(there))}
        pixels = code.local(self._dtype, len(number) * lanes, "pixel")
        for position, i in number.items():  # all loads, then all that wait for them
            j, t = there[position]
            axes = dict(zip(self._spatial, self._place(0, j), strict=True)) | chosen
            value = reader.compute(taps.data, axes | self._tap(row, first + t))
            with code.unrolled(lanes) as v:
                code.store(pixels, const(i * lanes) + v, reader.at(value, v))
        if line is not None:
            for j, t in product(range(cols), range(count)):
                with code.unrolled(lanes) as v:
                    value = load(pixels, const(number[at[j][t]] * lanes) + v)
                    place = const(j * lanes) + v
                    code.store(line, place, self._combiner(load(line, place), value))
            return
        for i in range(self._knobs.rows):
            with code.when(self._reads(row, i)):
                weights = Lanes(code, self._lane, lanes, self._results.known)
                axes = dict(zip(self._spatial, self._place(0, 0), strict=True)) | chosen
                for t in range(count):
                    tap = self._tap(row - i * taps.stride_h, first + t)
                    weight = weights.compute(taps.weight, axes | tap)
                    for j in range(cols):
                        with code.unrolled(lanes) as v:
                            value = load(pixels, const(number[at[j][t]] * lanes) + v) * weights.at(weight, v)
                            self._add(const((i * cols + j) * lanes) + v, value)

    def _tap(self, row: Any, column: Any) -> dict[Any, Any]:
        taps = self._taps
        pairs = ((taps.down, row), (taps.along, column))
        return {axis.var: value for axis, value in pairs if axis is not None}
