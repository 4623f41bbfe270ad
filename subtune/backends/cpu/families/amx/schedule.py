"""Contractions of bfloat16, of float32 in parts, or of bytes, in blocks of AMX tiles.

The loops are those of `loop_nest`, the micro-kernel is one call.

    begin                                    (a thread's tile registers have their shapes)
      copy rows of A in tiles                (here for orders that share rows out, before all loops for others)
      for n tile, m tile:
        multiply                             (a block of C, in registers; then in a scratch of 4 KB)
        epilogue                             (vectors of the scratch)
    end

A constant B is packed in tiles at compile time, another one in the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.backends.cpu.families.amx.calls import with_calls
from subtune.backends.cpu.families.amx.candidates import (
    Knobs,
    accepts,
    accepts_bytes,
    accepts_in_parts,
    obstacle,
    parts_of,
)
from subtune.backends.cpu.families.amx.tiles import Tiled, in_tiles, packing_of
from subtune.backends.cpu.family import CPUProblem
from subtune.backends.cpu.loops.by_group import GroupPacking, by_group
from subtune.backends.cpu.loops.flat_rows import reread, rows_merged
from subtune.backends.cpu.loops.loop_nest import Tiling, place
from subtune.backends.cpu.loops.padding import pad_axes
from subtune.backends.cpu.math.amx_tiles import COLUMNS, ROWS, TileBlock
from subtune.backends.cpu.math.bf16_ops import with_instructions
from subtune.core.kernel import ConstantTransform, Kernel, NotApplicable
from subtune.patterns.axes import Role
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored, classify
from subtune.tir.prepack import split_prepack
from subtune.tir.tile import extent_of


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    why = accepts(problem)
    return NotApplicable(why) if why else _kernel(problem, knobs)


def schedule_in_parts(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    why = accepts_in_parts(problem)
    return NotApplicable(why) if why else _kernel(problem, knobs)


def schedule_bytes(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    why = accepts_bytes(problem)
    return NotApplicable(why) if why else _kernel(problem, knobs, problem.pattern.a.dtype)


def _kernel(problem: CPUProblem, knobs: Knobs, dtype: str = "bfloat16") -> Kernel | NotApplicable:
    parts = parts_of(problem.pattern)
    if why := obstacle(knobs, parts):
        return NotApplicable(why)
    found = _rows(problem)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    tiling = Tiling(knobs.mr * knobs.rows, knobs.nr * COLUMNS, knobs.mt, knobs.order, COLUMNS, knobs.serial)
    passes = knobs.passes or _passes(info, tiling)
    if not knobs.passes and knobs.order == "n":
        passes = max(passes, knobs.least_passes(parts))
    block = TileBlock(knobs.mr, knobs.nr, knobs.rows, parts, dtype=dtype)
    weights, groups = problem.pattern.b, problem.pattern.groups
    name, param = sch.get(stages.anchors[0]).name_hint, weights.param if weights.is_constant else -1
    packing = packing_of(info, block)
    if weights.is_constant and _comes_from_afar(packing.shape, tiling, problem):
        block = replace(block, ahead=ceil(parts * knobs.nr * ROWS / passes))
    row_blocks = _row_blocks(problem.pattern, info, tiling)
    if padded := _padding(info, tiling):
        sch, stages, info = reread(pad_axes(sch.mod["main"], name, info, padded))
    tiled = in_tiles(sch.mod["main"], name, info, block)
    if isinstance(tiled, NotApplicable):
        return tiled
    try:
        func = _schedule(tiled, name, info, tiling, block, (passes, row_blocks), param)
    except ScheduleError as e:
        return NotApplicable(str(e).strip().splitlines()[-1])
    if isinstance(func, NotApplicable):
        return func
    packed: ConstantTransform = GroupPacking(groups, packing) if groups > 1 else packing
    return Kernel(func, () if param < 0 else ((param, packed),))


def _rows(problem: CPUProblem) -> tuple[Schedule, Stages, Contraction] | NotApplicable:
    """The workload in which groups are a batch and rows one axis, where what follows goes through them in order."""
    found = anchored(problem.workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    sch, stages, info = found
    if info.per_group:
        parted = by_group(sch.mod["main"], sch.get(stages.anchors[0]).name_hint, info)
        if isinstance(parted, NotApplicable):
            return parted
        found = reread(parted)
    merged = rows_merged(*found, copies=True)
    if isinstance(merged, NotApplicable):
        return found
    return reread(merged)


def _comes_from_afar(packed: Sequence[int], tiling: Tiling, problem: CPUProblem) -> bool:
    """Whether panels of a constant B are in no L2 when they are needed: each is read once, or all are too many."""
    return tiling.order in ("n", "nm") or 4 * prod(packed) > problem.device.l2_bytes / 2


def _padding(info: Contraction, tiling: Tiling) -> dict[int, int]:
    """New extents: rows of one axis are whole groups that share a panel."""
    padded, rows = tiling.padding(info), info.of_role(Role.M)
    group = tiling.mr * tiling.mt
    if len(rows) == 1 and rows[0].extent % group:
        padded[rows[0].index] = ceil(rows[0].extent / group) * group
    return padded


def _row_blocks(original: Contraction, info: Contraction, tiling: Tiling) -> int:
    """Blocks with rows of their own, where padding makes others behind them; else 0.

    Of images whether there are others changes from one batch to the next: it is asked in any case.
    """
    rows = info.of_role(Role.M)
    blocks = ceil(rows[-1].extent / tiling.mr)
    are_images = len(original.of_role(Role.M)) > len(rows) and tiling.mt > 1
    return blocks if len(rows) == 1 and (are_images or blocks % tiling.mt) else 0


def _passes(info: Contraction, tiling: Tiling) -> int:
    """Blocks of rows that read one panel of B, one after the other, before the next panel is read."""
    return ceil(info.of_role(Role.M)[-1].extent / tiling.mr) if tiling.order == "n" else tiling.mt


def _schedule(
    tiled: Tiled,
    name: str,
    original: Contraction,
    tiling: Tiling,
    block: TileBlock,
    counts: tuple[int, int],
    param: int,
) -> PrimFunc | NotApplicable:
    """`counts`: `passes` and `row_blocks` of `with_calls`."""
    sch = Schedule(tiled.func)
    stages = classify(sch)
    if isinstance(stages, NotApplicable):
        return stages
    for producer in [sch.get(one).name_hint for one in stages.producers]:
        if producer not in (tiled.a_tiles, tiled.b_tiles) and (param < 0 or not _feeds(sch, producer, tiled.b_tiles)):
            sch.compute_inline(sch.get_sblock(producer))
    packs = param < 0
    nest = place(sch, sch.get_sblock(name), stages.outputs, tiled.info, tiling, packs)
    if packs:
        is_along_n = original.b.axes[-1] == original.n.index
        place_packed(sch, tiled.b_tiles, nest.batch, is_along_n, tiling.is_serial, block.parts > 1)
    _place_a(sch, tiled, nest.fused if tiling.order == "m" or nest.batch else None, tiling.is_serial, block.parts > 1)
    for output in nest.outputs:
        _vectors(sch, output, nest.depth)
    if not tiling.is_serial:
        sch.parallel(nest.fused)
    whole = sch.get(sch.blockize(nest.reduce[0])).name_hint
    func = sch.mod["main"] if packs else split_prepack(sch.mod["main"], param)
    return with_instructions(with_calls(func, [whole], block, *counts))


def _feeds(sch: Schedule, producer: str, reader: str) -> bool:
    return any(sch.get(one).name_hint == reader for one in sch.get_consumers(sch.get_sblock(producer)))


def _place_a(sch: Schedule, tiled: Tiled, at: Any | None, is_serial: bool, in_parts: bool) -> None:
    """Copy A where the loop over its rows is the threads' own, else before all others and in parallel."""
    copy = sch.get_sblock(tiled.a_tiles)
    if at is not None:
        sch.compute_at(copy, at, preserve_unit_loops=True)
    *outer, lanes = sch.get_loops(copy)
    if in_parts:
        sch.unroll(outer.pop())
    *outer, _ = outer
    if at is None and not is_serial:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
    if tiled.lies_along_k:
        sch.vectorize(lanes)


def place_packed(
    sch: Schedule, name: str, at: Any | None, is_along_n: bool, is_serial: bool, in_parts: bool = False
) -> None:
    """Pack a right operand by the thread that computes a batch, or before all else and in parallel."""
    copy = sch.get_sblock(name)
    if at is not None:
        sch.compute_at(copy, at, preserve_unit_loops=True)
    *outer, columns = sch.get_loops(copy)
    if in_parts:
        sch.unroll(outer.pop())
    *outer, _ = outer
    if at is None and not is_serial:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 else outer[0])
    if is_along_n:
        sch.vectorize(columns)


def _vectors(sch: Schedule, output: Any, depth: int) -> None:
    """The epilogue's rows one after the other, in vectors of the scratch's columns."""
    *_, last = sch.get_loops(output)[depth:]
    if extent_of(sch, last) % COLUMNS:
        if extent_of(sch, last) <= 2 * COLUMNS:
            sch.vectorize(last)
        return
    vectors, lanes = sch.split(last, [None, COLUMNS])
    sch.unroll(vectors)
    sch.vectorize(lanes)
