"""Two contractions in a row, fused over the rows they share: matmul-exp-matmul, feed-forward, attention.

    for batch, blocks of mb rows (parallel):
      for column panels, tiles of rows:  micro-kernel over k, f on its registers       -> t[mb, n], in cache
      softmax: the rows' largest element, exp, one over the sum
      for column panels, tiles of rows:  micro-kernel over n, epilogue on its registers -> out

What lies between the contractions never leaves the cache. Micro-kernels are those of `contraction`. A softmax is not
normalised before the second contraction but after it: n2 instead of n multiplications a row.
Source: Dao et al., "FlashAttention", 2022, for rows that fit the cache; Goto & van de Geijn 2008 for the micro-kernels.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.families.chain.candidates import Knobs, accepts, obstacle
from subtune.backends.cpu.families.chain.stages import rewrite
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.online_pack import is_copy, mark_turned, turn_marked
from subtune.backends.cpu.math.horizontal import fold_partials
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.chain import ChainExpressions, chain_expressions
from subtune.tir.blocks import all_blocks
from subtune.tir.tile import extent_of, vector_width, vectorize_tile


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    workload, lanes = problem.workload, problem.device.lanes()
    form = chain_expressions(workload.func, workload.num_outputs)
    if isinstance(form, NotApplicable):
        return form
    if why := accepts(problem):
        return NotApplicable(why)
    if reason := obstacle(form.pattern, knobs, problem.device):
        return NotApplicable(reason)
    func, packings = rewrite(workload.func, form, knobs, lanes)
    sch = Schedule(func)
    try:
        _schedule(sch, form, knobs, lanes)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    turned = turn_marked(sch.mod["main"])
    return Kernel(fold_partials(turned, ("largest", "total"), lanes), packings)


def _schedule(sch: Schedule, form: ChainExpressions, tile: Knobs, lanes: int) -> None:
    names = {sch.get(b).name_hint for b in all_blocks(sch)}
    sums = []  # (reduction, its loop): decomposed last, since annotations must come before
    # the second contraction carries the loops that all others are placed in
    _, mm = _tile_loops(sch, "done", tile.mb, tile.mr2, tile.nr2, lanes)
    sch.set_scope(sch.get_sblock("done"), 0, "local")
    sch.reverse_compute_at(sch.get_sblock("out"), mm, preserve_unit_loops=True)
    sums.append(_micro_kernel(sch, "o", mm, lanes))
    vectorize_tile(sch, sch.get_sblock("out"), len(form.outer) + 3, lanes)
    *outer, rows = sch.get_loops(sch.get_sblock("done"))[: len(form.outer) + 1]
    batch = None
    if tile.pack == "batch" and outer and {"b_packed", "e_packed"} & names:
        outermost = batch = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    else:
        outermost = rows = sch.fuse(*outer, rows) if outer else rows
    if "e_packed" in names:
        _place_packing(sch, "e_packed", batch, not form.pattern.e_is_contiguous, lanes, tile.serial)
    if "p" in names:
        for stage in ("inverse", "total", "total_part", "p", "largest", "largest_part"):
            sch.compute_at(sch.get_sblock(stage), rows, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("t"), rows, preserve_unit_loops=True)
    panels, mm = _tile_loops(sch, "t", tile.mb, tile.mr, tile.nr, lanes)
    sums.append(_micro_kernel(sch, "s", mm, lanes))
    if "p" in names:
        sums += place_softmax(sch, rows, panels, mm, lanes)
    if "b_packed" in names:
        _place_packing(sch, "b_packed", batch, not form.pattern.b_is_contiguous, lanes, tile.serial)
    if "a_rows" in names:
        stage = sch.get_sblock("a_rows")
        sch.compute_at(stage, rows, preserve_unit_loops=True)
        _vectorize_last(sch, stage, lanes)
    for name in {"a_rows", "p" if "p" in names else "t"} & {*names}:
        # rows an odd number of vectors apart: a multiple of 4 KB would put all rows of a tile into one cache set
        sch.storage_align(sch.get_sblock(name), 0, -2, 2 * lanes, lanes)
    if not tile.serial:
        sch.parallel(outermost)
    for block, loop in sums:
        sch.decompose_reduction(block, loop)


def _tile_loops(sch: Schedule, name: str, mb: int, mr: int, nr: int, lanes: int) -> tuple[Any, Any]:
    """Tile the last two loops [m, n] of a stage; its loops over column panels and over tiles of rows."""
    *_, m, n = sch.get_loops(sch.get_sblock(name))
    mo, mm, mi = sch.split(m, [None, mb // mr, mr])
    no, nv, ni = sch.split(n, [None, nr // lanes, lanes])
    sch.reorder(mo, no, mm, mi, nv, ni)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(mi)
    return no, mm


def _micro_kernel(sch: Schedule, name: str, at: Any, lanes: int) -> tuple[Any, Any]:
    """Compute a contraction's tile in registers, where loop `at` needs it; the block and its reduced loop."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, at, preserve_unit_loops=True)
    *_, mi, n, k = sch.get_loops(block)
    nv, ni = sch.split(n, [None, lanes])
    sch.reorder(k, mi, nv, ni)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(mi)
    return block, k


def _place_packing(sch: Schedule, name: str, at: Any | None, turns: bool, lanes: int, is_serial: bool) -> None:
    """Pack a right operand [o, panels, reduced, columns]; `turns`: it lies with its reduced elements side by side."""
    block = sch.get_sblock(name)
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    *outer, panel, reduced, columns = sch.get_loops(block)
    if at is None and not is_serial:
        sch.parallel(sch.fuse(*outer, panel))
    if turns and is_copy(sch.get(block)) and extent_of(sch, reduced) >= lanes:
        mark_turned(sch, columns, reduced, lanes)
    else:
        sch.vectorize(columns)


def place_softmax(sch: Schedule, rows: Any, panels: Any, tile: Any, lanes: int) -> list[tuple[Any, Any]]:
    """Maxima are taken of every `tile` of scores as it is stored, sums of every vector of exp as it is computed.

    What remains is one pass over the rows, and no chain of maxima or sums that would take longer than the loads.
    """
    part = sch.get_sblock("largest_part")
    sch.reverse_compute_at(part, tile, preserve_unit_loops=True)
    *_, row, lane, chunk = sch.get_loops(part)
    sch.reorder(row, chunk, lane)
    for loop in (row, chunk):
        sch.unroll(loop)
    sch.vectorize(lane)
    p = sch.get_sblock("p")
    row, column = sch.get_loops(p)[-2:]
    column, lane = sch.split(column, [None, lanes])
    sch.vectorize(lane)
    sch.compute_at(sch.get_sblock("largest"), row, preserve_unit_loops=True)
    total = sch.get_sblock("total_part")
    sch.set_scope(total, 0, "local")
    sch.reverse_compute_at(total, column, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(total)[-2])
    for stage in ("total", "inverse"):
        sch.reverse_compute_at(sch.get_sblock(stage), row, preserve_unit_loops=True)
    return [(part, panels), (total, column)]


def _vectorize_last(sch: Schedule, block: Any, lanes: int) -> None:
    last = sch.get_loops(block)[-1]
    width = vector_width(extent_of(sch, last), lanes)
    if width > 1:
        _, vec = sch.split(last, [None, width])
        sch.vectorize(vec)
