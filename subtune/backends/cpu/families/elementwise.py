"""Elementwise subgraphs: one loop nest at the speed of memory.

`flat`: all loops fused, for operands of one layout; `rows`: outer loops parallel, the innermost vectorised, for
broadcasts; `ragged`: rows of whole vectors, the last of which has as many lanes as are left (`tails`); `sections`: an
axis in stretches whose elements come from the same place, for concatenations and paddings; `tile`: a square tile of the
last axis and the axis an operand is contiguous along, for transposes. With the knob `ahead`, what lies a
page behind is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.families.memory_bound import elements_s
from subtune.backends.cpu.family import MODE, SERIAL, STREAMED, CPUProblem
from subtune.backends.cpu.loops.prefetch import prefetch_rows
from subtune.backends.cpu.loops.sections import in_sections
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.elementwise import FEW_INPUTS, Elementwise, merged_axes
from subtune.patterns.stages import inline
from subtune.tir.tile import extent_of, vector_width

_MAX_UNROLLED = 16
"""Vectors of a row written one after the other: which of several joined inputs each comes from is then known."""
_PLAIN = frozenset({"if_then_else", "isnan", "likely", "reinterpret"})
"""Calls that are an instruction or two."""
_SECTION_CYCLES = 3.0  # to begin another section of a row
_ASKED = 3.0  # times the bytes' time where every vector asks which section it lies in
_NARROW = 1.2  # times what vectors take that divide the elements: of 2 x 23 x 31, two lanes
_FETCHED = 4.0  # times each line of a transposed operand, one element at a time, where it does not stay in L1


@dataclass(frozen=True, slots=True)
class Knobs:
    """`shape`: of the loops; `unroll` vectors at a time; `wide`: as many elements as the narrowest type has lanes."""

    shape: str
    unroll: int
    wide: bool
    ahead: bool = field(default=False, metadata=MODE)
    serial: bool = field(default=False, metadata=MODE)
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    return "" if isinstance(problem.pattern, Elementwise) else "not elementwise"


def candidates(problem: CPUProblem) -> list[Candidate]:
    """The loop shapes that there are for it, the vector by the widest or by the narrowest element."""
    anchor, workload, device = problem.pattern, problem.workload, problem.device
    wides = (False, True) if any(dtype_bits(arg.dtype) < 32 for arg in workload.args) else (False,)
    outputs = [arg.shape for arg in workload.args if arg.is_output]
    base = elements_s(problem)
    alike = all(arg.shape in outputs or prod(map(int, arg.shape)) == 1 for arg in workload.args)
    parts = sum(prod(map(int, arg.shape)) * 8 > anchor.extent for arg in workload.args if not arg.is_output)
    # Where operands are not alike, a flat index is taken apart again, and every unrolled piece of several inputs
    # joined asks where it comes from.
    flat = 1.0 if alike else 1.1 if parts < 2 else 1.2
    costs = {("flat", 1): flat, ("flat", 4): 0.99 if alike else flat if parts < 2 else 4.0,
             ("rows", 1): 1.0 if not alike else 1.02, ("tile", 1): 1.05 if alike else 1.4}  # fmt: skip
    # Of all elements, one after the other, where they lie alike: LLVM finds wider vectors itself, but for functions.
    row = anchor.row if not alike else anchor.extent if _calls_functions(workload.func.body) else 0
    if row > device.lanes() and row % device.lanes():
        costs["ragged", 1] = 1.0
        if alike:
            costs = {how: cost * (1 if how[0] == "ragged" else _NARROW) for how, cost in costs.items()}
    joined = len(workload.args) - len(outputs)
    if not alike and joined > FEW_INPUTS:  # a chain of questions for every vector; a tile asks once for its rows
        costs = {
            how: cost * joined / (FEW_INPUTS if how[0] != "tile" else 4 * FEW_INPUTS) for how, cost in costs.items()
        }
    if anchor.sections:
        rows = anchor.extent / anchor.sectioned / anchor.run
        asked_s = rows * anchor.sections * _SECTION_CYCLES / device.cycles_per_s / device.threads
        if anchor.run == 1:  # the axis of the vectors
            costs = {how: cost * _ASKED for how, cost in costs.items()}
        costs["sections", 1] = 1.0 + asked_s / base
    gathered_s = 0.0
    if anchor.transposed:
        gathered_s = base + anchor.extent * device.calibration.gathered_cycles / device.cycles_per_s / device.threads
        gathered_s = max(gathered_s, base * _FETCHED)
    found = []
    for wide in wides:
        for (shape, unroll), cost in costs.items():
            knobs, seconds = Knobs(shape, unroll, wide), max(base, gathered_s) * cost
            found.append(Candidate.of("elementwise", knobs, seconds))
            if alike and workload.nbytes > device.l3_bytes and shape == "flat":
                asked_s = seconds * device.calibration.ahead_elements
                found.append(Candidate.of("elementwise", replace(knobs, ahead=True), asked_s))
    return found


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    workload, device = problem.workload, problem.device
    sch = Schedule(workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers:
        return NotApplicable("not an elementwise workload")
    narrowest = min(dtype_bits(arg.dtype) for arg in workload.args if arg.is_output)
    lanes = device.lanes(narrowest) if knobs.wide else device.lanes()
    if knobs.shape == "sections":
        if len(stages.outputs) > 1:
            return NotApplicable("several outputs")
        func = in_sections(sch.mod["main"], sch.get(stages.outputs[0]), lanes, knobs.serial)
        return NotApplicable("rows of many sections") if func is None else Kernel(func)
    try:
        for output in stages.outputs:
            outer = _nest(sch, output, knobs.shape, lanes, knobs.unroll)
            if outer is not None and not knobs.serial:
                sch.parallel(outer)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    if not knobs.ahead:
        return Kernel(sch.mod["main"], (), sch.trace)
    return Kernel(prefetch_rows(sch.mod["main"], [sch.get(output).name_hint for output in stages.outputs]))


def _nest(sch: Schedule, block: Any, shape: str, lanes: int, unroll: int) -> Any | None:
    """Arrange the loops; the one to run in parallel, or None for a scalar."""
    loops = sch.get_loops(block)
    if not loops:
        return None
    if shape == "flat":
        fused = sch.fuse(*loops)
        outer, inner, vec = sch.split(fused, [None, unroll, vector_width(extent_of(sch, fused), lanes)])
        sch.unroll(inner)
        sch.vectorize(vec)
        return outer
    if shape in ("rows", "ragged"):
        loops = _merged(sch, block, loops)
    *rows, last = loops
    if shape == "tile" and rows:
        across = rows[-1] if extent_of(sch, rows[-1]) > 1 else max(rows, key=lambda loop: extent_of(sch, loop))
        rows = [row for row in rows if row is not across]
        ao, ai = sch.split(across, [None, vector_width(extent_of(sch, across), lanes)])
        lo, li = sch.split(last, [None, vector_width(extent_of(sch, last), lanes)])
        sch.reorder(*rows, ao, lo, ai, li)
        outer = sch.fuse(*rows, ao, lo)
        if not _calls_functions(sch.get(block).body):  # sixteen copies of each polynomial take seconds to compile
            sch.unroll(ai)
        sch.vectorize(li)
        return outer
    width = lanes if shape == "ragged" else vector_width(extent_of(sch, last), lanes)
    if width > extent_of(sch, last):
        raise ScheduleError("a row is shorter than a vector")
    if width == 1:
        return sch.fuse(*rows) if rows else last
    lo, vec = sch.split(last, [None, width])
    sch.vectorize(vec)
    if not rows or extent_of_all(sch, rows) == 1:
        return lo
    if extent_of(sch, lo) <= _MAX_UNROLLED:
        sch.unroll(lo)
    return sch.fuse(*rows)


def _merged(sch: Schedule, block: Any, loops: list[Any]) -> list[Any]:
    """The loops with the innermost ones fused, along which all operands that have them are contiguous."""
    axes = merged_axes(sch.get(block))
    if isinstance(axes, NotApplicable) or not axes or len(axes[-1]) < 2:
        return loops
    count = len(axes[-1])
    return [*loops[:-count], sch.fuse(*loops[-count:])]


def _calls_functions(body: Any) -> bool:
    """Whether a statement computes functions, such as exp; a condition is none."""
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (ir.Call, lambda call: found.append(str(getattr(call.op, "name", "")))))
    return any(name.rpartition(".")[2] not in _PLAIN for name in found)


def extent_of_all(sch: Schedule, loops: list[Any]) -> int:
    size = 1
    for loop in loops:
        size *= extent_of(sch, loop)
    return size


FAMILY = Family("elementwise", 4, Knobs, accepts, candidates, schedule, (SERIAL, STREAMED))
