"""The kernel: reductions written, what follows them in vectors; stage by stage, or row by row all of a row's stages."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.partials.candidates import Knobs, is_in_rows, obstacle_of, table_of
from subtune.backends.cpu.families.partials.pieces import Shares
from subtune.backends.cpu.families.partials.rows import Rows
from subtune.backends.cpu.families.partials.table import Table
from subtune.backends.cpu.families.partials.whole_rows import row_by_row
from subtune.backends.cpu.family import CPUProblem
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.moments import LARGE, large_reductions
from subtune.patterns.stages import elements_inlined, iterations
from subtune.patterns.strided import strided
from subtune.tir.blocks import all_blocks, is_reduction, root_stages, stage_block, with_stages
from subtune.tir.tile import extent_of

_SERIAL = 4096
"""Elements of a stage that one thread computes."""
_FEW_ROWS = 4
"""For a thread: with fewer, their columns are divided, too."""


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    device = problem.device
    try:
        inlined = elements_inlined(problem.workload)
        if isinstance(inlined, NotApplicable):
            return inlined
        sch, output = inlined
        names = large_reductions(sch)
        if knobs.whole:
            return row_by_row(sch, output, knobs.unroll, device.lanes(), Shares(1, knobs.serial))
        _spread(sch, device.lanes(), 0 if knobs.serial else device.threads)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    return _by_stages(sch.mod["main"], names, knobs, device.lanes())


def _by_stages(func: PrimFunc, names: list[str], knobs: Knobs, lanes: int) -> Kernel | NotApplicable:
    stages: list[Any] = []
    buffers = list(func.body.block.alloc_buffers)
    for stage in root_stages(func):
        block = stage_block(stage)
        if block.name_hint not in names:
            stages.append(stage)
            continue
        writer = _writer(block, knobs, lanes)
        if isinstance(writer, NotApplicable):
            return writer
        stages += writer.stages()
        buffers += writer.buffers
    return Kernel(with_stages(func, stages, buffers))


def _writer(block: Any, knobs: Knobs, lanes: int) -> Rows | Table | NotApplicable:
    found = strided(block)
    if isinstance(found, NotApplicable):
        return found
    if (reason := obstacle_of(found)) is not None:
        return reason
    if is_in_rows(found) != (knobs.tile == 0):
        return NotApplicable("a tile where there is no table, or none for one")
    shares = Shares(knobs.pieces, knobs.serial)
    if knobs.tile == 0:
        return Rows(found, knobs.unroll, lanes, shares)
    _, extent, _ = table_of(found)
    if knobs.tile > extent:
        return NotApplicable(f"a tile of {knobs.tile} of {extent}")
    return Table(found, knobs.unroll, knobs.tile, lanes, shares)


def _spread(sch: Schedule, lanes: int, threads: int) -> None:
    """Large stages of elements: rows in parallel, columns as vectors, a ragged row's last one too.

    Args:
        threads: 0 for the calling one alone.
    """
    most = max(iterations(sch, block) for block in all_blocks(sch))
    for block in all_blocks(sch):
        size = iterations(sch, block)
        if is_reduction(sch.get(block)) or size <= _SERIAL or size * LARGE * LARGE <= most:
            continue
        *rows, columns = sch.get_loops(block)
        vectors, vector = sch.split(columns, [None, min(lanes, extent_of(sch, columns))])
        sch.vectorize(vector)
        if threads == 0:
            continue
        are_many = prod(extent_of(sch, row) for row in rows) >= _FEW_ROWS * threads
        sch.parallel(sch.fuse(*rows) if are_many else sch.fuse(*rows, vectors))
