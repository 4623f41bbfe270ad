"""Few channels of bytes, put side by side: planes of an image become pixels.

    out[n, h, w, c] = f(x[n, c, h, w])      c of two to four
->  for n, h (parallel): for vectors of w:  out[16 pixels] = interleave(f(x[n, 0, h, 16 w]), f(x[n, 1, h, 16 w]), ...)

A vector along c would have three elements, one along w would be scattered. What lies at the ends of a row, such as its
padding, is computed pixel by pixel; the last vector overlaps its neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from subtune.backends.base import Family
from subtune.backends.cpu.families.memory_bound import elements_s
from subtune.backends.cpu.family import MODE, SERIAL, CPUProblem
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import BYTES
from subtune.patterns.elementwise import Elementwise
from subtune.patterns.stages import inline
from subtune.tir.blocks import with_stages, written
from subtune.tir.expressions import conjuncts, is_same, loads, variables
from subtune.tir.shuffle import shuffled
from subtune.tir.substitute import substitute

_CHANNELS = (2, 3, 4)
_CONDITIONAL = frozenset({"prim.if_then_else", "tirx.if_then_else"})


@dataclass(frozen=True, slots=True)
class Knobs:
    """`lanes`: pixels of a vector."""

    lanes: int
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if not isinstance(problem.pattern, Elementwise):
        return "not elementwise"
    (*_, output) = problem.workload.args
    if sum(arg.is_output for arg in problem.workload.args) > 1 or output.dtype not in BYTES:
        return "no single result of bytes"
    shape = [int(extent) for extent in output.shape]
    return "" if len(shape) > 2 and shape[-1] in _CHANNELS else "not a few channels side by side"


def candidates(problem: CPUProblem) -> list[Candidate]:
    width = int(problem.workload.args[-1].shape[-2])
    return [
        Candidate.of("interleaved", Knobs(lanes), elements_s(problem)) for lanes in (16, 32, 64) if 2 * lanes <= width
    ]


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    sch = Schedule(problem.workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers or len(stages.outputs) != 1:
        return NotApplicable("not an elementwise workload")
    made = _interleaved(sch.mod["main"], sch.get(stages.outputs[0]), knobs)
    return made if isinstance(made, NotApplicable) else Kernel(made)


def _interleaved(func: PrimFunc, block: Any, knobs: Knobs) -> PrimFunc | NotApplicable:
    store, axes = block.body, list(block.iter_vars)
    if not isinstance(store, tirx.BufferStore) or len(axes) != len(store.indices):
        return NotApplicable("the result is stored otherwise")
    if not all(is_same(index, axis.var) for index, axis in zip(store.indices, axes, strict=True)):
        return NotApplicable("the result is stored in another order")
    (*outer, w, c), lanes = axes, knobs.lanes
    for load in loads(store.value):
        if load.indices and not _runs_along(load.indices, w.var):
            return NotApplicable("an operand does not lie along the pixels of a row")
    width, channels = int(w.dom.extent), int(c.dom.extent)
    begin, end = _inside(store.value, w.var, width)
    if end - begin < lanes:
        return NotApplicable("rows of fewer pixels than a vector")
    row = tirx.Var("row", "int64")
    places, left = {}, row
    for axis in reversed(outer):
        places[axis.var] = left % axis.dom.extent
        left = left // axis.dom.extent
    parts = [_pixels(block, w.var, channels, *ends) for ends in ((0, begin), (end, width)) if ends[0] < ends[1]]
    vectors, buffers = _vectors(block, w.var, channels, (begin, end), lanes)
    parts.append(vectors)
    body = substitute(tirx.SeqStmt(parts) if len(parts) > 1 else parts[0], places)
    extent = 1
    for axis in outer:
        extent *= int(axis.dom.extent)
    kind = tirx.ForKind.SERIAL if knobs.serial or extent == 1 else tirx.ForKind.PARALLEL
    loop = tirx.For(row, _int(0), _int(extent), kind, body)
    return with_stages(func, [written(block.name_hint, loop, buffers)], func.body.block.alloc_buffers)


def _runs_along(indices: Any, w: Any) -> bool:
    """Whether the innermost index, and no other, is `w` plus what does not depend on it; or none depends on it."""
    *others, last = indices
    if any(w in variables(index) for index in others):
        return False
    step = Analyzer().simplify(substitute(last, {w: w + tirx.const(1, w.ty.dtype)}) - last)
    return isinstance(step, tirx.IntImm) and int(step) in (0, 1)


def _inside(value: Any, w: Any, width: int) -> tuple[int, int]:
    """The positions along `w` between which every condition on it alone holds."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.Call, lambda call: found.append(call) if _is_choice(call) else None))
    asked = [one for call in found for one in conjuncts(call.args[0]) if set(variables(one)) == {w}]
    analyzer = Analyzer()
    held = [
        all(_is_true(analyzer.simplify(substitute(one, {w: tirx.const(at, w.ty.dtype)}))) for one in asked)
        for at in range(width)
    ]
    begin = held.index(True) if True in held else 0
    end = next((at for at in range(begin, width) if not held[at]), width)
    return (begin, end) if True in held else (0, 0)


def _is_choice(call: Any) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name in _CONDITIONAL


def _is_true(condition: Any) -> bool:
    return isinstance(condition, tirx.IntImm) and bool(int(condition))


def _pixels(block: Any, w: Any, channels: int, begin: int, end: int) -> Any:
    """Pixels one after the other."""
    at, store = tirx.Var("pixel", "int64"), block.body
    stores = []
    for channel in range(channels):
        place = {w: at + _int(begin), block.iter_vars[-1].var: _int(channel)}
        indices = [substitute(index, place) for index in store.indices]
        stores.append(tirx.BufferStore(store.buffer, substitute(store.value, place), indices))
    return tirx.For(at, _int(0), _int(end - begin), tirx.ForKind.SERIAL, tirx.SeqStmt(stores))


def _vectors(block: Any, w: Any, channels: int, ends: tuple[int, int], lanes: int) -> tuple[Any, list[Any]]:
    """Vectors of pixels, one of every channel, whose bytes are then stored in turns; and the buffers they are in."""
    (begin, end), store, dtype = ends, block.body, str(block.body.buffer.dtype)
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    first = tirx.min(_int(begin) + vector * _int(lanes), _int(end - lanes))
    kept = [tirx.decl_buffer([_int(lanes)], dtype, f"channel{i}", scope="local") for i in range(channels)]
    steps = []
    for channel, buffer in enumerate(kept):
        value = tvm_ffi.structural_map(store.value, (ir.Call, lambda call: _without(call, w)))
        value = substitute(value, {w: first + lane, block.iter_vars[-1].var: _int(channel)})
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


def _without(call: Any, w: Any) -> Any:
    """A choice without the conditions on `w` alone, which hold."""
    if not _is_choice(call):
        return call
    asked = [one for one in conjuncts(call.args[0]) if set(variables(one)) != {w}]
    return tirx.if_then_else(tirx.all(*asked), *call.args[1:]) if asked else call.args[1]


def _int(value: int) -> Any:
    return tirx.const(value, "int64")


FAMILY = Family("interleaved", 1, Knobs, accepts, candidates, schedule, (SERIAL,))
