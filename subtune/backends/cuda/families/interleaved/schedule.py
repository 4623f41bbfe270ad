"""Planes of an image put side by side on a GPU: rows of pixels are made in shared memory, and stored from there.

    out[n, h, w, c] = f(x[n, c, h, w])      c of two to four

    block: `rows` rows;   thread: of some pixels all channels, each plane in 16-byte loads;  then 16-byte stores

A pixel of three halves is no word, and a row of padded pixels begins anywhere: in shared memory that costs little. The
ends of a row, where its padding is, are computed element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from tvm import tirx
from tvm.s_tir import ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.source.axes import substituted
from subtune.backends.cuda.source.emit import Code, const, load, prim_func, ramp
from subtune.backends.cuda.source.lanes import ACCESS_BYTES, Lanes, Unsupported, decoded, not_applicable, rounded
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.side_by_side import SideBySide, planes_of
from subtune.tir.expressions import choice_of, loads, variables

STATIC_SHARED_BYTES = 48 << 10


@dataclass(frozen=True, slots=True)
class InterleavedKnobs:
    """`rows` and `threads` of a block, neighbouring `pixels` of a thread."""

    rows: int
    threads: int
    pixels: int


def schedule(problem: Problem[CUDAModel], knobs: InterleavedKnobs) -> Kernel | NotApplicable:
    found = planes_of(problem.workload)
    if isinstance(found, NotApplicable):
        return found
    func, block, planes = found
    dtype = str(block.body.buffer.dtype)
    if dtype == "bool" or dtype_bits(dtype) % 8:
        return NotApplicable(f"no vectors of {dtype}")
    if knobs.rows * prod(planes.extents[-2:]) * dtype_bits(dtype) // 8 > STATIC_SHARED_BYTES:
        return NotApplicable("rows that do not fit shared memory")
    if planes.end - planes.begin < knobs.pixels:
        return NotApplicable("rows of fewer pixels than a thread's")
    try:
        kernel = _Writer(block, planes, knobs, problem.numerics.exact).write()
    except (Unsupported, ScheduleError) as e:
        return not_applicable(e)
    return Kernel(prim_func(func, [kernel]))


class _Writer:
    def __init__(self, block: Any, planes: SideBySide, knobs: InterleavedKnobs, exact: bool) -> None:
        self._planes, self._knobs, self._code = planes, knobs, Code(exact)
        self._buffer, self._dtype = block.body.buffer, str(block.body.buffer.dtype)
        self._outer = planes.extents[:-2]
        self._rows, self._row = prod(self._outer), planes.width * planes.channels
        self._tile: Any = None
        self._bx: Any = None
        self._tx: Any = None

    def write(self) -> Any:
        code, knobs, planes = self._code, self._knobs, self._planes
        self._bx = code.thread("blockIdx.x", -(-self._rows // knobs.rows))
        self._tx = code.thread("threadIdx.x", knobs.threads)
        self._tile = code.shared(self._dtype, knobs.rows * self._row, "tile")
        runs = (planes.end - planes.begin) // knobs.pixels
        self._vectors(runs)
        for begin, end in ((0, planes.begin), (planes.begin + runs * knobs.pixels, planes.width)):
            if begin < end:
                self._ends(begin, end)
        code.sync()
        self._store()
        return code.kernel()

    def _vectors(self, runs: int) -> None:
        """The pixels between the ends of all rows, of which a row has `runs` runs; all are asked for first."""
        code, pixels, channels = self._code, self._knobs.pixels, self._planes.channels
        lane, work = code.variable("lane", pixels), []
        for number, guard in self._numbers(self._knobs.rows * runs):
            with self._of_row(tirx.floordiv(number, const(runs)), guard) as (row, axes, there):
                first = tirx.floormod(number, const(runs)) * pixels + self._planes.begin
                *_, w, c = self._planes.axes
                places = [axes | {w: first + lane, c: const(channel)} for channel in range(channels)]
                for condition, value in self._choices(axes):
                    reader = Lanes(code, lane, pixels)
                    with code.when(condition):
                        values = [reader.compute(value, place) for place in places]
                    work.append((reader, _both(there, condition), row * self._row + first * channels, values))
        for reader, there, at, values in work:
            with code.when(there), code.unrolled(pixels) as v:
                for channel, value in enumerate(values):
                    one = rounded(reader.at(value, v), self._dtype)
                    code.store(self._tile, at + v * channels + channel, one)

    def _choices(self, axes: dict[Any, Any]) -> list[tuple[Any, Any]]:
        """What a row's pixels are, where a condition holds on it, and where not: asked once for all of them."""
        choice = choice_of(self._planes.value)
        if choice is None or loads(choice[0]) or variables(choice[0]) & set(self._planes.axes[-2:]):
            return [(None, self._planes.value)]
        condition = self._code.analyzer.simplify(substituted(choice[0], axes))
        return [(condition, choice[1]), (tirx.Not(condition), choice[2])]

    def _ends(self, begin: int, end: int) -> None:
        """Pixels of all rows, element by element."""
        code, channels = self._code, self._planes.channels
        shape = self._knobs.rows, end - begin, channels
        lane = code.variable("lane", 1)
        for number, guard in self._numbers(prod(shape)):
            place, pixel, channel = decoded(number, shape, code.analyzer)
            with self._of_row(place, guard) as (row, axes, _):
                *_, w, c = self._planes.axes
                at = {w: code.bind("pixel", pixel, end - begin) + begin, c: channel}
                value = Lanes(code, lane, 1).compute(self._planes.anywhere, axes | at)
                code.store(self._tile, row * self._row + at[w] * channels + channel, rounded(value, self._dtype))

    def _numbers(self, count: int) -> Iterator[tuple[Any, Any]]:
        """A thread's numbers below `count`, in turns, each with the condition that it is one."""
        threads = self._knobs.threads
        for turn in range(-(-count // threads)):
            number = turn * threads + self._tx
            guard = tirx.LT(number, const(count)) if (turn + 1) * threads > count else None
            yield self._code.bind("number", number, count), guard

    @contextmanager
    def _of_row(self, place: Any, guard: Any) -> Iterator[tuple[Any, dict[Any, Any], Any]]:
        """Below the condition that it is one: row number `place` of the block's, and the block's axes there."""
        code, rows = self._code, self._knobs.rows
        row = code.bind("row", place, rows)
        number = self._bx * rows + row
        if self._rows % rows:
            guard = _both(guard, tirx.LT(number, const(self._rows)))
        with code.when(guard):
            number = code.bind("place", number, self._rows)
            indices = decoded(number, self._outer, code.analyzer)
            yield row, dict(zip(self._planes.axes[:-2], indices, strict=True)), guard

    def _store(self) -> None:
        """The block's rows, which follow one another, in accesses as wide as all of them are aligned."""
        code, rows = self._code, self._knobs.rows
        element = dtype_bits(self._dtype) // 8
        left = self._rows % rows
        width = gcd(ACCESS_BYTES, rows * self._row * element, left * self._row * element) // element
        for number, guard in self._numbers(rows * self._row // width):
            at = self._bx * (rows * self._row) + number * width
            if left:
                guard = _both(guard, tirx.LT(at, const(self._rows * self._row)))
            with code.when(guard):
                code.store(self._buffer, ramp(at, width), load(self._tile, ramp(number * width, width)))


def _both(a: Any, b: Any) -> Any:
    """Both conditions, of which None is one that holds."""
    return a if b is None else b if a is None else tirx.And(a, b)
