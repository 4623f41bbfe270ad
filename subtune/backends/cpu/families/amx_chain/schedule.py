"""Attention in bfloat16 on AMX: the loops of `chain`, both micro-kernels are calls that multiply blocks of tiles.

    for batch, blocks of rows (parallel):
      begin;  rows of A in tiles
      for panels of B, blocks of tiles:   multiply, f                           -> t, in cache
      softmax: the rows' largest element, exp in bfloat16 tiles, one over the sum
      for panels of E, blocks of tiles:   multiply, epilogue                    -> out
      end
Source: Dao et al., "FlashAttention", 2022, for rows that fit the cache.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.cpu.families.amx.calls import with_calls
from subtune.backends.cpu.families.amx.schedule import place_packed
from subtune.backends.cpu.families.amx_chain.candidates import Knobs, accepts, obstacle
from subtune.backends.cpu.families.amx_chain.stages import rewrite
from subtune.backends.cpu.families.chain.candidates import cache_limit_bytes
from subtune.backends.cpu.families.chain.schedule import place_softmax
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.math.amx_tiles import COLUMNS, TileBlock
from subtune.backends.cpu.math.horizontal import fold_partials
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.chain import ChainExpressions, chain_expressions
from subtune.tir.tile import extent_of


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    workload = problem.workload
    form = chain_expressions(workload.func, workload.num_outputs)
    if isinstance(form, NotApplicable):
        return form
    if why := accepts(problem) or obstacle(form.pattern, knobs, cache_limit_bytes(problem.device)):
        return NotApplicable(why)
    sch = Schedule(rewrite(workload.func, form, knobs))
    try:
        products = _schedule(sch, form, knobs)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    func = with_calls(sch.mod["main"], products, TileBlock(knobs.mr, knobs.nr, knobs.rows))
    return Kernel(fold_partials(func, ("largest", "total"), COLUMNS))


def _schedule(sch: Schedule, form: ChainExpressions, knobs: Knobs) -> list[str]:
    """Place all loops; the names of the blocks that are to be calls."""
    is_softmax = form.pattern.is_softmax
    _, mm = _blocks(sch, "done", knobs)
    sch.set_scope(sch.get_sblock("done"), 0, "local")
    sch.reverse_compute_at(sch.get_sblock("out"), mm, preserve_unit_loops=True)
    products = [_product(sch, "o", mm)]
    _vectors(sch, "out")
    *outer, rows = sch.get_loops(sch.get_sblock("done"))[: len(form.outer) + 1]
    batch = None
    if knobs.pack == "batch" and outer:
        outermost = batch = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    else:
        outermost = rows = sch.fuse(*outer, rows) if outer else rows
    place_packed(sch, "e_tiles", batch, form.pattern.e_is_contiguous, knobs.serial)
    stages = ["p_tiles"]
    if is_softmax:
        stages = ["inverse", "total", "total_part", "p_tiles", "p", "largest", "largest_part"]
    for stage in (*stages, "t"):
        sch.compute_at(sch.get_sblock(stage), rows, preserve_unit_loops=True)
    panels, mm = _blocks(sch, "t", knobs)
    products.append(_product(sch, "s", mm))
    sums = place_softmax(sch, rows, panels, mm, COLUMNS) if is_softmax else []
    _, lane = sch.split(sch.get_loops(sch.get_sblock("p_tiles"))[-1], [None, COLUMNS])
    sch.vectorize(lane)
    place_packed(sch, "b_tiles", batch, form.pattern.b_is_contiguous, knobs.serial)
    copy = sch.get_sblock("a_tiles")
    sch.compute_at(copy, rows, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(copy)[-1])
    if not knobs.serial:
        sch.parallel(outermost)
    for block, loop in sums:
        sch.decompose_reduction(block, loop)
    # last: nothing can be placed beside blocks that hold loops
    return [str(sch.get(sch.blockize(loop)).name_hint) for loop in products]


def _blocks(sch: Schedule, name: str, knobs: Knobs) -> tuple[Any, Any]:
    """Tile the last two loops [m, n] of a stage; its loops over panels of columns and over blocks of rows."""
    height = knobs.mr * knobs.rows
    *_, m, n = sch.get_loops(sch.get_sblock(name))
    mo, mm, mi = sch.split(m, [None, knobs.mb, height])
    no, nv, ni = sch.split(n, [None, knobs.nr, COLUMNS])
    sch.reorder(mo, no, mm, mi, nv, ni)
    sch.vectorize(ni)
    sch.unroll(nv)
    return no, mm


def _product(sch: Schedule, name: str, at: Any) -> Any:
    """Sum a block of tiles where loop `at` needs it; its outermost loop."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, at, preserve_unit_loops=True)
    *_, m, n, k = sch.get_loops(block)
    sch.reorder(k, m, n)
    return k


def _vectors(sch: Schedule, name: str) -> None:
    columns = sch.get_loops(sch.get_sblock(name))[-1]
    if extent_of(sch, columns) > COLUMNS:
        vectors, columns = sch.split(columns, [None, COLUMNS])
        sch.unroll(vectors)
    sch.vectorize(columns)
