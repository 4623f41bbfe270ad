"""Few channels of bytes, put side by side: planes of an image become pixels.

    out[n, h, w, c] = f(x[n, c, h, w])      c of two to four
->  for n, h (parallel): for vectors of w:  out[16 pixels] = interleave(f(x[n, 0, h, 16 w]), f(x[n, 1, h, 16 w]), ...)

A vector along c would have three elements, one along w would be scattered. What lies at the ends of a row, such as its
padding, is computed pixel by pixel; the last vector overlaps its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.backends.base import Family
from subtune.backends.cpu.families.memory_bound import elements_s
from subtune.backends.cpu.family import MODE, SERIAL, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import BYTES
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.side_by_side import SideBySide, has_few_channels, planes_of
from subtune.tir.blocks import with_stages, written
from subtune.tir.shuffle import shuffled
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Knobs:
    """`lanes`: pixels of a vector."""

    lanes: int
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if not isinstance(problem.pattern, Elementwise):
        return "not elementwise"
    if problem.workload.args[-1].dtype not in BYTES:
        return "no result of bytes"
    return "" if has_few_channels(problem.workload) else "not a few channels side by side"


def candidates(problem: CPUProblem) -> list[Candidate]:
    width = int(problem.workload.args[-1].shape[-2])
    return [
        Candidate.of("interleaved", Knobs(lanes), elements_s(problem)) for lanes in (16, 32, 64) if 2 * lanes <= width
    ]


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = planes_of(problem.workload)
    if isinstance(found, NotApplicable):
        return found
    func, block, planes = found
    if planes.end - planes.begin < knobs.lanes:
        return NotApplicable("rows of fewer pixels than a vector")
    return Kernel(_interleaved(func, block, planes, knobs))


def _interleaved(func: PrimFunc, block: Any, found: SideBySide, knobs: Knobs) -> PrimFunc:
    row = tirx.Var("row", "int64")
    places, left = {}, row
    for axis, extent in reversed(list(zip(found.axes[:-2], found.extents[:-2], strict=True))):
        places[axis] = left % _int(extent)
        left = left // _int(extent)
    sides = (0, found.begin), (found.end, found.width)
    parts = [_pixels(block, found, *ends) for ends in sides if ends[0] < ends[1]]
    vectors, buffers = _vectors(block, found, knobs.lanes)
    parts.append(vectors)
    body = substitute(tirx.SeqStmt(parts) if len(parts) > 1 else parts[0], places)
    extent = prod(found.extents[:-2])
    kind = tirx.ForKind.SERIAL if knobs.serial or extent == 1 else tirx.ForKind.PARALLEL
    loop = tirx.For(row, _int(0), _int(extent), kind, body)
    return with_stages(func, [written(block.name_hint, loop, buffers)], func.body.block.alloc_buffers)


def _pixels(block: Any, found: SideBySide, begin: int, end: int) -> Any:
    """Pixels one after the other."""
    at, store = tirx.Var("pixel", "int64"), block.body
    *_, w, c = found.axes
    stores = []
    for channel in range(found.channels):
        place = {w: at + _int(begin), c: _int(channel)}
        indices = [substitute(index, place) for index in store.indices]
        stores.append(tirx.BufferStore(store.buffer, substitute(found.anywhere, place), indices))
    return tirx.For(at, _int(0), _int(end - begin), tirx.ForKind.SERIAL, tirx.SeqStmt(stores))


def _vectors(block: Any, found: SideBySide, lanes: int) -> tuple[Any, list[Any]]:
    """Vectors of pixels, one of every channel, whose bytes are then stored in turns; and the buffers they are in."""
    begin, end, channels = found.begin, found.end, found.channels
    *_, w, c = found.axes
    store, dtype = block.body, str(block.body.buffer.dtype)
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    first = tirx.min(_int(begin) + vector * _int(lanes), _int(end - lanes))
    kept = [tirx.decl_buffer([_int(lanes)], dtype, f"channel{i}", scope="local") for i in range(channels)]
    steps = []
    for channel, buffer in enumerate(kept):
        value = substitute(found.value, {w: first + lane, c: _int(channel)})
        one = tirx.BufferStore(buffer, value, [lane])
        steps.append(tirx.For(lane, _int(0), _int(lanes), tirx.ForKind.VECTORIZED, one))
    whole = tirx.Ramp(_int(0), _int(1), lanes)
    vectors = [tirx.BufferLoad(buffer, [whole]) for buffer in kept]
    turns = [channel * lanes + pixel for pixel in range(lanes) for channel in range(channels)]
    indices = [substitute(index, {w: first}) for index in store.indices[:-1]]
    together = tirx.Ramp(_int(0), _int(1), lanes * channels)
    steps.append(tirx.BufferStore(store.buffer, shuffled(vectors, turns), [*indices, together]))
    count = -(-(end - begin) // lanes)
    return tirx.For(vector, _int(0), _int(count), tirx.ForKind.SERIAL, tirx.SeqStmt(steps)), kept


def _int(value: int) -> Any:
    return tirx.const(value, "int64")


FAMILY = Family("interleaved", 1, Knobs, accepts, candidates, schedule, (SERIAL,))
