"""A product with few columns: every element is a dot product, with vectors along k.

    for tiles of mr rows (parallel):
      for vectors of k:  for mr rows, n columns (unrolled):  partial[row, column] += a[row] * b[column]
      for mr rows, n columns:  the partial results folded into one, epilogue

Vectors along three columns of sixteen lanes would leave thirteen empty. A is read where it lies, along k; a constant B
is transposed at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, prod
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.families.products import fma_obstacle
from subtune.backends.cpu.family import MODE, REGISTERS, SERIAL, CPUProblem
from subtune.backends.cpu.loops.flat_rows import reread
from subtune.backends.cpu.loops.padding import pad_axes
from subtune.backends.cpu.math.horizontal import fold_tile
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import dtype_bits
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored
from subtune.tir.padding import pad_reductions
from subtune.tir.prepack import PREPROC_ATTR, split_prepack

_FOLD_CYCLES = 4.0  # of an element: its vector folded, and stored by itself
_OWN_REGISTERS = 6  # of the rows, the columns and what is computed of them


@dataclass(frozen=True, slots=True)
class Knobs:
    """Rows of a tile."""

    mr: int = field(metadata=REGISTERS)
    serial: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    return fma_obstacle(problem) or _obstacle(problem.pattern, problem.device.lanes())


def _obstacle(anchor: Contraction, lanes: int) -> str:
    roles = [axis.role for axis in anchor.axes]
    if roles != ["m"] * (len(roles) - 2) + ["n", "k"] or len(roles) < 3 or anchor.per_group:
        return "no matrix product"
    n, k = anchor.axes[-2:]
    if n.extent >= lanes or k.extent < lanes:
        return "columns for whole vectors, or none along k"
    if anchor.a.axes[-1] != k.index or any(anchor.a.windows):
        return "A does not lie along k"
    if not anchor.b.is_constant and anchor.b.axes[-1] != k.index:
        return "B does not lie along k, and cannot be transposed before"
    return "" if sorted(anchor.b.axes) == [n.index, k.index] else "B is indexed by more than its own axes"


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Tiles with as many partial results as there are registers for, and of half as many."""
    anchor, device = problem.pattern, problem.device
    lanes = device.lanes(dtype_bits(anchor.acc_dtype))
    n, k = (axis.extent for axis in anchor.axes[-2:])
    m = prod(axis.extent for axis in anchor.of_role("m"))
    most = max(1, min(m, (device.vector_registers - _OWN_REGISTERS) // n))
    memory_s = stream_s(problem.workload.nbytes, device)
    found = []
    for mr in sorted({most, max(1, most - 1), ceil(most / 2)}, reverse=True):
        tiles = ceil(m / mr)
        step = max(mr * n / device.fma_per_cycle, (mr + n) / 2.0, device.fma_latency)
        cycles = tiles * (ceil(k / lanes) * step + mr * n * _FOLD_CYCLES)
        seconds = cycles / device.cycles_per_s / device.threads
        found.append(Candidate.of("dots", Knobs(mr), max(seconds, memory_s) * imbalance(tiles, device) + 0.1 * seconds))
    return found


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    lanes = problem.device.lanes(dtype_bits(info.acc_dtype))
    if obstacle := _obstacle(info, problem.device.lanes()):
        return NotApplicable(obstacle)
    if stages.producers or len(stages.outputs) > 1:
        return NotApplicable("more than a product and its epilogue")
    rows = info.of_role("m")[-1]
    if rows.extent % knobs.mr:
        extents = {rows.index: ceil(rows.extent / knobs.mr) * knobs.mr}
        sch, stages, info = reread(pad_axes(sch.mod["main"], sch.get(stages.anchors[0]).name_hint, info, extents))
    name = sch.get(stages.anchors[0]).name_hint
    try:
        packing = _transposed(sch, stages, info)
        padded = pad_reductions(sch.mod["main"], lanes)
        if padded is not None:
            sch = Schedule(padded)
        return _schedule(sch, name, info, knobs, lanes, packing)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])


def _transposed(sch: Schedule, stages: Stages, info: Contraction) -> Packing | None:
    """A constant B along k, by a block that is done at compile time."""
    k = info.axes[-1].index
    if not info.b.is_constant or info.b.axes[-1] == k:
        return None
    packed = sch.cache_read(stages.anchors[0], info.b.read, "global")
    sch.transform_layout(stages.anchors[0], ("read", info.b.read), lambda i, j: (j, i))
    sch.annotate(packed, PREPROC_ATTR, True)
    return Packing(tuple((extent,) for extent in info.b.shape), (1, 0))


def _schedule(sch: Schedule, name: str, info: Contraction, knobs: Knobs, lanes: int, packing: Packing | None) -> Kernel:
    total = sch.get_sblock(name)
    *_, k = sch.get_loops(total)
    _, lane = sch.split(k, [None, lanes])
    partial = sch.rfactor(lane, len(info.axes) - 1)
    outputs = sch.get_consumers(total)
    output = outputs[0] if outputs else sch.cache_write(total, 0, "local")
    *outer, row, column = sch.get_loops(output)
    tile, inner = sch.split(row, [None, knobs.mr])
    fused = sch.fuse(*outer, tile)
    if not knobs.serial:
        sch.parallel(fused)
    sch.unroll(inner)
    sch.unroll(column)
    sch.compute_at(total, fused, preserve_unit_loops=True)
    sch.compute_at(partial, fused, preserve_unit_loops=True)
    lane, row, column, steps = sch.get_loops(partial)[-4:]
    sch.reorder(steps, row, column, lane)
    sch.unroll(row)
    sch.unroll(column)
    sch.vectorize(lane)
    among, row, column = sch.get_loops(total)[-3:]
    sch.reorder(row, column, among)
    sch.unroll(row)
    sch.unroll(column)
    for block in (partial, total):
        sch.set_scope(block, 0, "local")
    sch.decompose_reduction(partial, steps)
    func: Any = fold_tile(sch.mod["main"], sch.get(total).name_hint)
    if packing is None:
        return Kernel(func)
    return Kernel(split_prepack(func, info.b.param), ((info.b.param, packing),))


FAMILY = Family("dots", 1, Knobs, accepts, candidates, schedule, (SERIAL,))
