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
    return Kernel(sch.mod["main"], packings)


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
        _place_packing(sch, "e_packed", batch, tile.serial)
    if "p" in names:
        sums += _rowwise(sch, "inverse", ("total_part",), rows, lanes)
        sums += _rowwise(sch, "p", ("largest", "largest_part"), rows, lanes)
    sch.compute_at(sch.get_sblock("t"), rows, preserve_unit_loops=True)
    _, mm = _tile_loops(sch, "t", tile.mr, tile.mr, tile.nr, lanes)
    sums.append(_micro_kernel(sch, "s", mm, lanes))
    if "b_packed" in names:
        _place_packing(sch, "b_packed", batch, tile.serial)
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
    """Tile the last two loops [m, n] of a stage; its loops over blocks of rows and over tiles of rows."""
    *_, m, n = sch.get_loops(sch.get_sblock(name))
    mo, mm, mi = sch.split(m, [None, mb // mr, mr])
    no, nv, ni = sch.split(n, [None, nr // lanes, lanes])
    sch.reorder(mo, no, mm, mi, nv, ni)
    sch.vectorize(ni)
    sch.unroll(nv)
    sch.unroll(mi)
    return mo, mm


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


def _place_packing(sch: Schedule, name: str, at: Any | None, is_serial: bool) -> None:
    block = sch.get_sblock(name)
    if at is not None:
        sch.compute_at(block, at, preserve_unit_loops=True)
    loops = sch.get_loops(block)
    sch.vectorize(loops[-1])
    if at is None and not is_serial:
        sch.parallel(sch.fuse(*loops[:-2]))


def _rowwise(sch: Schedule, name: str, inner: tuple[str, ...], rows: Any, lanes: int) -> list[tuple[Any, Any]]:
    """Place `name` in the block of rows, and what it needs of each row inside its loop over them, partials last."""
    stage = sch.get_sblock(name)
    sch.compute_at(stage, rows, preserve_unit_loops=True)
    row = sch.get_loops(stage)[-2 if name == "p" else -1]
    if name == "p":
        _vectorize_last(sch, stage, lanes)
    for part in inner:
        sch.compute_at(sch.get_sblock(part), row, preserve_unit_loops=True)
    partial = sch.get_sblock(inner[-1])
    sch.set_scope(partial, 0, "local")
    *_, lane, chunk = sch.get_loops(partial)
    sch.reorder(chunk, lane)
    sch.vectorize(lane)
    return [(partial, chunk)]


def _vectorize_last(sch: Schedule, block: Any, lanes: int) -> None:
    last = sch.get_loops(block)[-1]
    width = vector_width(extent_of(sch, last), lanes)
    if width > 1:
        _, vec = sch.split(last, [None, width])
        sch.vectorize(vec)
