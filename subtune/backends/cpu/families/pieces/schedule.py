"""Reductions that keep the innermost axis, rows in pieces: a thread reads its piece from the first byte to the last.

    for each large reduction:
      for pieces of its rows (parallel):  for a few rows at a time:  all columns as vectors  ->  partial[piece]
      sum of the partial results
    for the output's rows (parallel):  all columns as vectors

`columns` gives threads columns instead: short parts of lines that lie apart, which memory is slow at.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.moments import LARGE
from subtune.patterns.rows import reads_columns
from subtune.patterns.stages import elements_inlined, iterations
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.tile import extent_of


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    try:
        inlined = elements_inlined(workload)
        if isinstance(inlined, NotApplicable):
            return inlined
        sch, _ = inlined
        blocks = {sch.get(b).name_hint: b for b in all_blocks(sch)}
        most = max(iterations(sch, b) for b in blocks.values())
        for block in blocks.values():
            if iterations(sch, block) * LARGE <= most:
                continue
            reason = (
                _reduction(sch, block, device, int(candidate["rows"]))
                if is_reduction(sch.get(block))
                else in_rows(sch, block, device.lanes())
            )
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


def in_rows(sch: Schedule, block: Any, lanes: int) -> NotApplicable | None:
    """Rows in parallel, columns as vectors."""
    *rows, columns = sch.get_loops(block)
    if not rows or extent_of(sch, columns) % lanes:
        return NotApplicable("no vectors of columns")
    _, vector = sch.split(columns, [None, lanes])
    sch.vectorize(vector)
    sch.parallel(sch.fuse(*rows))
    return None
