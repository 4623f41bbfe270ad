"""Reductions that keep the innermost axis: softmax over channels, instance norm channels last, sums over rows.

    for kept outer axes and tile of `cb` columns (parallel):
      for each stage:  for the other axes:  cb columns as vectors; a reduction's sums stay in registers

All stages of one tile run before the next tile, so that what several of them read stays in the cache. With the knob
`ahead`, rows to come are asked for while this one is read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize, Schedule, ScheduleError

from subtune.backends.base import Family
from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.bandwidth import stream_s
from subtune.backends.cpu.families.memory_bound import columns_obstacle, columns_of, is_read_once
from subtune.backends.cpu.families.rowwise import kept_axes
from subtune.backends.cpu.family import MODE, PER_ROW, REGISTERS, SERIAL, STREAMED, CPUProblem
from subtune.backends.cpu.loops.prefetch import prefetch_rows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.rows import columns, reads_columns
from subtune.patterns.stages import elements_inlined
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.expressions import variables
from subtune.tir.tile import extent_of, vector_width
from subtune.tir.walk import found

_MAX_UNROLLED = 16  # vectors


@dataclass(frozen=True, slots=True)
class Knobs:
    """Columns of a tile."""

    cb: int = field(metadata=REGISTERS)
    ahead: bool = field(default=False, metadata=MODE)
    serial: bool = field(default=False, metadata=MODE)
    stream: bool = field(default=False, metadata=MODE)


def candidates(problem: CPUProblem) -> list[Candidate]:
    """Tiles of one to eight vectors of columns, and all columns of a row."""
    anchor, workload, device = columns_of(problem.pattern), problem.workload, problem.device
    lanes = device.lanes()
    widths = {cb for cb in range(lanes, 8 * lanes + 1, lanes) if anchor.columns % cb == 0 and cb % anchor.group == 0}
    if anchor.columns <= 64 * lanes:
        widths.add(anchor.columns)
    # The widest for every thread to have one: whole pages are read in a row.
    for pieces in (device.threads, 2 * device.threads):
        each, left = divmod(anchor.columns, pieces)
        if each <= 64 * lanes and left == 0 and each % lanes == 0 and each % anchor.group == 0:
            widths.add(each)
    proposed = []
    for cb in sorted(widths):
        grains = anchor.outer * anchor.columns // cb
        uneven = imbalance(grains, device)
        is_cached = is_read_once(workload) or anchor.length * cb * 4 <= device.l2_bytes
        # few accumulators do not hide the latency of the sums; narrow tiles read short pieces of lines far apart
        stalls = 1.0 + 2.0 / max(cb / lanes, 0.5)
        seconds = stream_s(workload.nbytes, device) * uneven * stalls * (1.0 if is_cached else 2.0)
        seconds += grains * device.calibration.grain_s
        proposed.append(Candidate.of("columns", Knobs(cb), seconds))
        if workload.nbytes > device.l2_bytes:
            proposed.append(Candidate.of("columns", Knobs(cb, ahead=True), seconds * device.calibration.ahead))
    return proposed


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    try:
        inlined = elements_inlined(problem.workload)
        if isinstance(inlined, NotApplicable):
            return inlined
        sch, output = inlined
        kernel = _schedule(sch, output, knobs.cb, problem.device.lanes(), knobs.serial)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    if isinstance(kernel, NotApplicable) or not knobs.ahead:
        return kernel
    return Kernel(prefetch_rows(kernel.func, [f"{sch.get(b).name_hint}" for b in all_blocks(sch)]))


def _schedule(sch: Schedule, output_name: str, cb: int, lanes: int, is_serial: bool) -> Kernel | NotApplicable:
    reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    if not reductions:
        return NotApplicable("no reduction")
    output = sch.get_sblock(output_name)
    if is_reduction(sch.get(output)):
        if len(sch.get(output).writes) > 1:
            return NotApplicable("a reduction of several values is the output")
        output = sch.cache_write(output, 0, "local")
    output_name = sch.get(output).name_hint
    kept = kept_axes(sch, output, reductions)
    node = sch.get(output)
    if len(node.iter_vars) - 1 not in kept:
        return NotApplicable("the innermost axis is reduced")
    loops = sch.get_loops(output)
    if len(loops) != len(node.iter_vars):
        return NotApplicable("the output's loops are not its axes")
    *outer, last = [loops[axis] for axis in kept]
    rest = [loop for axis, loop in enumerate(loops) if axis not in kept]
    info = columns(sch, reductions)
    if isinstance(info, NotApplicable):
        return info
    if extent_of(sch, last) % cb or cb % info.group:
        return NotApplicable(f"a tile of {cb} columns does not divide {info.columns} in groups of {info.group}")
    names = [sch.get(b).name_hint for b in all_blocks(sch)]
    tile, inner = sch.split(last, [None, cb])
    sch.reorder(*outer, tile, *rest, inner)
    at = sch.fuse(*outer, tile)
    if not is_serial:
        sch.parallel(at)
    for name in reversed(names):
        if name != output_name:
            sch.compute_at(sch.get_sblock(name), at)
    for name in names:
        _stage(sch, sch.get_sblock(name), lanes)
    return Kernel(sch.mod["main"], (), sch.trace)


def _stage(sch: Schedule, block: Any, lanes: int) -> None:
    """Columns innermost as vectors; reduced axes outside of them, all else outermost."""
    node = sch.get(block)
    last = node.writes[0].region[-1].min if len(node.writes[0].region) else None
    by_axis = _loops_of_axes(sch, block)
    reduce, columns = [], None
    for iv, loop in zip(node.iter_vars, by_axis, strict=True):
        if loop is None:
            continue
        if int(iv.iter_type) == tirx.IterVar.CommReduce:
            reduce.append(loop)
        elif last is not None and last.same_as(iv.var):
            columns = loop
    if columns is None or not reads_columns(node, last):
        return
    extent = extent_of(sch, columns)
    width = vector_width(extent, lanes)
    if width == 1:
        return
    if reduce:
        sch.reorder(*reduce, columns)
    vectors, vec = sch.split(columns, [None, width])
    sch.vectorize(vec)
    if extent // width <= _MAX_UNROLLED:
        sch.unroll(vectors)
    if reduce:
        if len(node.writes) == 1:
            sch.set_scope(block, 0, "local")
        sch.decompose_reduction(block, reduce[0])


def _loops_of_axes(sch: Schedule, block: Any) -> list[Any | None]:
    """For every axis of the block, the one loop that is bound to it below the tile; None for an axis of one value."""
    name = sch.get(block).name_hint
    realize = next(r for r in found(sch.mod["main"].body, SBlockRealize) if r.block.name_hint == name)
    loops = sch.get_loops(block)[1:]
    result: list[Any | None] = []
    for value in realize.iter_values:
        used = variables(value)
        mine = [loop for loop in loops if sch.get(loop).loop_var in used]
        result.append(mine[0] if len(mine) == 1 else None)
    return result


FAMILY = Family("columns", 1, Knobs, columns_obstacle, candidates, schedule, (SERIAL, STREAMED, PER_ROW))
