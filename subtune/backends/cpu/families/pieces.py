"""Reductions that keep the innermost axis, rows in pieces: a thread reads its piece from the first byte to the last.

    for each large reduction:
      for pieces of its rows (parallel):  for a few rows at a time:  all columns as vectors  ->  partial[piece]
      sum of the partial results
    for the output's rows (parallel):  all columns as vectors

`columns` gives threads columns instead: short parts of lines that lie apart, which memory is slow at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.families.memory_bound import columns_obstacle, columns_of, is_read_once
from subtune.backends.cpu.family import MODE, PER_ROW, STREAMED, CPUProblem
from subtune.backends.cpu.loops.rows import in_rows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.moments import LARGE
from subtune.patterns.rows import reads_columns
from subtune.patterns.stages import elements_inlined, iterations
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.tile import extent_of

_ROWS_AT_A_TIME = (4, 8, 16)
_NORM_READS = 3  # for the mean, for the variance, and for the result


@dataclass(frozen=True, slots=True)
class Knobs:
    """Rows that are read at a time."""

    rows: int
    stream: bool = field(default=False, metadata=MODE)


def accepts(problem: CPUProblem) -> str:
    if obstacle := columns_obstacle(problem):
        return obstacle
    device = problem.device
    if device.threads == 1 or problem.workload.nbytes <= device.l2_bytes:
        return "one thread, or so small that L2 holds it"
    return "no vectors of columns" if columns_of(problem.pattern).columns % device.lanes() else ""


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Rows for every thread, a few at a time: they lie in memory one after the other."""
    anchor, workload, device = columns_of(problem.pattern), problem.workload, problem.device
    reads = 1 if is_read_once(workload) else _NORM_READS
    read = max(arg.nbytes for arg in workload.args)
    seconds = stream_s(workload.nbytes, device) + (reads - 1) * stream_s(read, device)
    return [
        Candidate.of("pieces", Knobs(rows), seconds * (1.0 + 1.0 / rows))
        for rows in _ROWS_AT_A_TIME
        if anchor.length % (rows * device.threads) == 0
    ]


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    device = problem.device
    try:
        inlined = elements_inlined(problem.workload)
        if isinstance(inlined, NotApplicable):
            return inlined
        sch, _ = inlined
        blocks = {sch.get(b).name_hint: b for b in all_blocks(sch)}
        most = max(iterations(sch, b) for b in blocks.values())
        for block in blocks.values():
            if iterations(sch, block) * LARGE <= most:
                continue
            if is_reduction(sch.get(block)):
                reason = _reduction(sch, block, device, knobs.rows)
            else:
                reason = in_rows(sch, block, device.lanes())
            if reason is not None:
                return reason
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    return Kernel(sch.mod["main"], (), sch.trace)


def _reduction(sch: Schedule, block: Any, device: CPUModel, rows: int) -> NotApplicable | None:
    kept, reduced = _loops(sch, block)
    lanes = device.lanes()
    node = sch.get(block)
    if not kept or extent_of(sch, kept[-1]) % lanes or len(node.writes) > 1:
        return NotApplicable("no vectors of columns")
    if not reads_columns(node, node.iter_vars[len(kept) - 1].var):
        return NotApplicable("the innermost axis is reduced")
    whole = sch.fuse(*reduced)
    step = device.threads * rows
    if extent_of(sch, whole) % step:
        return NotApplicable(f"{extent_of(sch, whole)} rows are no whole pieces of {rows} at a time")
    piece, _ = sch.split(whole, [device.threads, None])
    partial = sch.rfactor(piece, 0)
    *kept, piece, inner = sch.get_loops(partial)
    some, few = sch.split(inner, [None, rows])
    columns, vector = sch.split(kept[-1], [None, lanes])
    sch.reorder(piece, *kept[:-1], some, columns, few, vector)
    sch.vectorize(vector)
    sch.unroll(few)
    sch.parallel(piece)
    sch.decompose_reduction(partial, some)
    *kept, pieces = sch.get_loops(block)
    columns, vector = sch.split(kept[-1], [None, lanes])
    sch.reorder(*kept[:-1], columns, pieces, vector)
    sch.vectorize(vector)
    sch.decompose_reduction(block, pieces)
    return None


def _loops(sch: Schedule, block: Any) -> tuple[list[Any], list[Any]]:
    """Those of what is kept, and those of what is reduced, which follow: the block has one for every axis."""
    kinds = [int(iv.iter_type) for iv in sch.get(block).iter_vars]
    loops = sch.get_loops(block)
    pairs = list(zip(loops, kinds, strict=True))
    return [loop for loop, kind in pairs if kind == 0], [loop for loop, kind in pairs if kind != 0]


FAMILY = Family("pieces", 1, Knobs, accepts, candidates, schedule, (STREAMED, PER_ROW))
