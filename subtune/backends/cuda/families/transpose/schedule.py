"""Transposes on a GPU, and elementwise subgraphs that read an operand transposed: square tiles through shared memory.

    block: a tile of `side` x `side`;  transposed operands in 16-byte loads along their own axis into shared memory;
    then 16-byte stores along the output's, everything else read and computed on the way; zeros behind what is read

A row of the tile is one element longer than `side`: rows then begin in different banks, for both directions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.source.emit import Code, const, load, prim_func
from subtune.backends.cuda.source.lanes import ACCESS_BYTES, Lanes, Unsupported, decoded, not_applicable
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.elementwise import TransposedAccess, access_of, transposed_access
from subtune.patterns.stages import inline


@dataclass(frozen=True, slots=True)
class TransposeKnobs:
    """`side` of the tile, `threads` of a block."""

    side: int
    threads: int


def schedule(problem: Problem[CUDAModel], knobs: TransposeKnobs) -> Kernel | NotApplicable:
    sch = Schedule(problem.workload.func)
    stages = inline(sch)
    if isinstance(stages, NotApplicable):
        return stages
    if stages.anchors or stages.producers or len(stages.outputs) != 1:
        return NotApplicable("not an elementwise workload with one output")
    block = sch.get(stages.outputs[0])
    info = transposed_access(block, pads=True)
    if isinstance(info, NotApplicable):
        return info
    try:
        kernel = _TileWriter(block, info, knobs.side, knobs.threads, problem.numerics.exact).write()
    except (Unsupported, ScheduleError) as e:
        return not_applicable(e)
    return Kernel(prim_func(sch.mod["main"], [kernel]))


class _TileWriter:
    """Groups of the output's axes (see `TransposedAccess`): `a` is contiguous in it, `b` in transposed operands."""

    def __init__(self, block: Any, info: TransposedAccess, side: int, threads: int, exact: bool) -> None:
        self._block, self._info, self._side, self._threads = block, info, side, threads
        self._axes = {iv.var: i for i, iv in enumerate(block.iter_vars)}
        self._extents = [int(iv.dom.extent) for iv in block.iter_vars]
        self._code = Code(exact)
        self._tiles: dict[Any, tuple[Any, int]] = {}
        self._place: Any = None

    def write(self) -> Any:
        code, info, side = self._code, self._info, self._side
        a, b = info.a, info.b
        counts = [extent if g not in (a, b) else -(-extent // side) for g, extent in enumerate(info.extents)]
        bx, tx = code.thread("blockIdx.x", prod(counts)), code.thread("threadIdx.x", self._threads)
        start = [code.bind("at", index, count) for index, count in zip(decoded(bx, counts, code.analyzer), counts,
                                                                       strict=True)]  # fmt: skip
        crossing = [found for found in self._loads() if self._is_transposed(found)]
        for found in crossing:
            self._fill(found, start, tx)
        code.sync()
        narrowest = min(dtype_bits(str(r.source.dtype)) for r in (*self._block.reads, *self._block.writes))
        width = self._width(info.extents[a], narrowest)

        def step(row: Any, column: Any, lane: Any) -> None:
            reader = Lanes(code, lane, width)
            place = {**dict(enumerate(start)), a: start[a] * side + column + lane, b: start[b] * side + row}
            axes = self._values(place)
            value = tvm_ffi.structural_map(self._block.body.value, (ir.TensorLoad, lambda e: self._from_tile(e, row,
                                                                                      column + lane)))  # fmt: skip
            body = self._block.body
            reader.write(body.buffer, [axes.get(i, i) for i in body.indices], reader.compute(value, axes))

        self._sweep(a, b, info.extents[b], start, tx, width, step)
        return code.kernel()

    def _loads(self) -> list[Any]:
        found: list[Any] = []
        tvm_ffi.structural_walk(self._block.body.value, (ir.TensorLoad, found.append), order="post")
        return found

    def _is_transposed(self, found: Any) -> bool:
        access = access_of(found, self._axes)
        assert access is not None, "transposed_access() has read it"
        group_of = {axis: g for g, axes in enumerate(self._info.groups) for axis in axes}
        used = [group_of[axis] for axis in access.axes if axis in group_of]
        return self._info.a in used and used[-1] != self._info.a

    def _width(self, extent: int, bits: int) -> int:
        """Elements of an access: 16 bytes of them, or what divides the extent."""
        width = min(ACCESS_BYTES * 8 // bits, self._side)
        while extent % width:
            width //= 2
        return width

    def _fill(self, found: Any, start: list[Any], tx: Any) -> None:
        """The tile of one transposed operand: `tile[a][b]`, read along b."""
        key = tvm_ffi.StructuralKey(found)
        if key in self._tiles:
            return
        code, info, side = self._code, self._info, self._side
        dtype = str(found.source.dtype)
        tile = code.shared(dtype, side * (side + 1), "tile")
        self._tiles[key] = tile, side + 1
        width = self._width(info.extents[info.b], dtype_bits(dtype))

        def step(row: Any, column: Any, lane: Any) -> None:
            reader = Lanes(code, lane, width)
            place = {**dict(enumerate(start)), info.b: start[info.b] * side + column + lane,
                     info.a: start[info.a] * side + row}  # fmt: skip
            axes = self._values(place)
            value = reader.compute(found, axes)
            with code.unrolled(width) as v:
                stored = reader.at(value, v)
                stored = stored if str(dtype) not in ("float16", "bfloat16") else tirx.Cast(dtype, stored)
                code.store(tile, row * (side + 1) + column + v, stored)

        self._sweep(info.b, info.a, info.read, start, tx, width, step)

    def _sweep(self, along: int, other: int, rows: int, start: list[Any], tx: Any, width: int, step: Any) -> None:
        """`step(row, column, lane)` for every run of `width` elements of the tile along one group, by all threads.

        Args:
            rows: of the other group, that there are.
        """
        code, side, extents = self._code, self._side, self._info.extents
        per_row = side // width
        rounds = -(-side * per_row // self._threads)
        for r in range(rounds):
            run = code.bind("run", const(r * self._threads) + tx, side * per_row)
            lane = code.variable("lane", width)
            row, column = code.bind("row", tirx.floordiv(run, const(per_row)), side), None
            column = code.bind("column", tirx.floormod(run, const(per_row)), per_row) * width
            conditions = []
            if side * per_row % self._threads:
                conditions.append(tirx.LT(run, const(side * per_row)))
            if extents[along] % side:
                conditions.append(tirx.LT(start[along] * side + column, const(extents[along])))
            if rows % side:
                conditions.append(tirx.LT(start[other] * side + row, const(rows)))
            with code.when(tirx.all(*conditions) if conditions else None):
                step(row, column, lane)

    def _values(self, place: dict[int, Any]) -> dict[Any, Any]:
        """The block's axes where every group is at `place`."""
        values: dict[Any, Any] = {iv.var: const(0) for iv in self._block.iter_vars}
        for group, axes in enumerate(self._info.groups):
            shape = [self._extents[axis] for axis in axes]
            for axis, index in zip(axes, decoded(place[group], shape, self._code.analyzer), strict=True):
                values[self._block.iter_vars[axis].var] = index
        return values

    def _from_tile(self, found: Any, row: Any, column: Any) -> Any:
        """In the tile, `row` counts along b and `column` along a."""
        entry = self._tiles.get(tvm_ffi.StructuralKey(found))
        return found if entry is None else load(entry[0], column * entry[1] + row)
