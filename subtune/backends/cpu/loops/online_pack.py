"""Packing a non-constant B inside the kernel (GEBP): panel by panel, per batch, or once at the root.

B[k, n] is copied along n. Where a thread has all rows of a panel, or many, the first tile of them packs it while it
multiplies (`pack_meanwhile`): what comes from memory arrives while something else is computed, and what is packed stays
in L2. B[n, k], as in attention's scores, is turned in tiles of vectors (`shuffle.turned`): the schedule marks the
tile's loops, and `turn_marked` writes the shuffles, which no schedule primitive makes. Where vectors do not divide k,
the last tile overlaps the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule
from tvm.tirx import PrimFunc

from subtune.backends.cpu.loops.prefetch import L1, MicroKernel, ask, before_steps
from subtune.patterns.chain import as_stored
from subtune.tir.blocks import root_stages, with_stages
from subtune.tir.expressions import is_same, variables
from subtune.tir.shuffle import turned
from subtune.tir.substitute import substitute
from subtune.tir.tile import extent_of, vector_width
from subtune.tir.walk import found, holds, with_body

_ROWS_AHEAD = 12  # of B, each multiplied for 8 to 14 cycles: L3 answers after 150
_TURNED = "subtune.turned"


def place_online_pack(
    sch: Schedule, packed: Any, at: Any | None, is_along_n: bool, lanes: int, is_serial: bool
) -> bool:
    """Arrange the packing's loops; whether `turn_marked` has work to do.

    Args:
        at: the loop over batches in which each is packed; None packs at the root, in parallel.
        is_along_n: B is contiguous along n, not along k.
    """
    if at is not None:
        sch.compute_at(packed, at)
    depth = 0 if at is None else 1
    *outer, first, last = sch.get_loops(packed)[depth:] if at is None else _inside(sch, packed, at)
    width = vector_width(extent_of(sch, last), lanes)
    has_tiles = extent_of(sch, last) >= lanes and extent_of(sch, first) % lanes == 0
    turns = not is_along_n and is_copy(sch.get(packed)) and has_tiles
    if turns:
        first = mark_turned(sch, first, last, lanes)
    elif width > 1:
        _, vec = sch.split(last, [None, width])
        sch.vectorize(vec)
    if at is None and not is_serial:
        sch.parallel(sch.fuse(*outer, first) if outer else first)
    return turns


def mark_turned(sch: Schedule, n: Any, k: Any, lanes: int) -> Any:
    """Copy B[n, k] in tiles of vectors, which `turn_marked` turns; the loop over such tiles along n, the outer one."""
    no, ni = sch.split(n, [None, lanes])
    ko, ki = sch.split(k, [None, lanes])
    sch.reorder(no, ko, ki, ni)
    sch.annotate(ki, _TURNED, lanes)
    return no


def _inside(sch: Schedule, packed: Any, at: Any) -> list[Any]:
    """The packing's loops inside of `at`."""
    loops = sch.get_loops(packed)
    variables = [sch.get(loop).loop_var for loop in loops]
    return list(loops[variables.index(sch.get(at).loop_var) + 1 :])


def turn_marked(func: PrimFunc) -> PrimFunc:
    """`func` with the marked loops as shuffles."""

    def turn(loop: Any) -> Any:
        return _turn(loop, int(loop.annotations[_TURNED])) if _TURNED in loop.annotations else loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, turn)))


def _turn(loop: Any, lanes: int) -> SBlockRealize:
    inner = loop.body
    realize = inner.body
    block = realize.block
    assert isinstance(realize, SBlockRealize), "the marked loops hold one block"
    values = {iv.var: value for iv, value in zip(block.iter_vars, realize.iter_values, strict=True)}
    for iv in block.iter_vars:
        if loop.loop_var in variables(values[iv.var]) and int(iv.dom.extent) % lanes:  # else it goes past the end
            begin = substitute(values[iv.var], {loop.loop_var: tirx.const(0, "int64")})
            values[iv.var] = tirx.Min(begin, iv.dom.extent - lanes) + loop.loop_var

    def at(indices: Any, k: int, n: int) -> list[Any]:
        numbers = {loop.loop_var: tirx.const(k, "int64"), inner.loop_var: tirx.const(n, "int64")}
        return [substitute(substitute(i, values), numbers) for i in indices]

    def along(indices: list[Any]) -> list[Any]:
        *others, last = indices
        return [*others, tirx.Ramp(last, tirx.const(1, "int64"), lanes)]

    store, load = block.body, _copied(block)
    assert load is not None, "the marked loops copy"
    rows, stmts = [], []
    for n in range(lanes):
        var = tirx.Var(f"b{n}", f"{load.source.dtype}x{lanes}")
        *others, first = at(load.indices, 0, n)
        if isinstance(store.value, ir.Call):  # what the padding's columns hold is never looked at: they repeat the last
            others = [tirx.Min(i, dim - 1) for i, dim in zip(others, load.source.shape[:-1], strict=True)]
        stmts.append(tirx.Bind(var, tirx.BufferLoad(load.source, along([*others, first]))))
        rows.append(var)
    rounds, columns = turned(rows, "b")
    stmts += rounds
    stmts += [
        tirx.BufferStore(store.buffer, column.astype(f"{store.buffer.dtype}x{lanes}"), along(at(store.indices, k, 0)))
        for k, column in enumerate(columns)
    ]
    reads, writes = (
        [tirx.BufferRegion(buffer, [ir.Range(tirx.const(0, "int64"), d) for d in buffer.shape])]
        for buffer in (load.source, store.buffer)
    )
    return SBlockRealize([], True, SBlock([], reads, writes, block.name_hint, tirx.SeqStmt(stmts)))


def is_copy(block: Any) -> bool:
    """Whether a packing's block only moves elements, casts them, and fills in padding."""
    return _copied(block) is not None


def _copied(block: Any) -> Any | None:
    """The load that a block copies, where there is padding or not; None where it does something else."""
    value = block.body.value
    if isinstance(value, ir.Call) and getattr(value.op, "name", "") == "prim.if_then_else":
        condition, value, _ = value.args
        if not _is_inside(condition, as_stored(value)):
            return None
    value = as_stored(value)
    return value if isinstance(value, ir.TensorLoad) else None


def _is_inside(condition: Any, load: ir.TensorLoad) -> bool:
    """`i < extent` of a dim that `load` indexes by `i`."""
    return (
        isinstance(condition, tirx.LT)
        and isinstance(load, ir.TensorLoad)
        and any(
            condition.a.same_as(index) and is_same(condition.b, extent)
            for index, extent in zip(load.indices, load.source.shape, strict=True)
        )
    )


def place_panel(sch: Schedule, packed: Any, at: Any, lanes: int) -> None:
    """Pack a panel of B[k, n] at the loop that the threads share, a vector at a time."""
    sch.compute_at(packed, at, preserve_unit_loops=True)
    _, columns = _inside(sch, packed, at)
    vectors, vector = sch.split(columns, [None, lanes])
    sch.unroll(vectors)
    sch.vectorize(vector)


def pack_meanwhile(func: PrimFunc, packing: str, kernel: MicroKernel) -> PrimFunc:
    """`func` with panels that `place_panel` placed packed by the first tile of rows that they are multiplied with.

    for k:  pack row k                      pack row 0
    for tiles:  for k:  multiply    ->      for tiles:  for k:  if it is the first tile:  pack row k + 1
                                                                multiply
    """
    (whole,) = (stage for stage in root_stages(func) if holds(stage, packing))
    rows, *rest = whole.body.seq
    (realize,) = found(rows, SBlockRealize)
    load = _copied(realize.block)
    assert load is not None, "what is packed is a copy"
    axes = {iv.var: value for iv, value in zip(realize.block.iter_vars, realize.iter_values, strict=True)}
    vectors = rows.body
    vector = vectors.body
    zero, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def packed(row: Any) -> Any:
        return substitute(rows.body, {rows.loop_var: row})

    def asked(row: Any) -> list[Any]:
        start = {rows.loop_var: row, vectors.loop_var: zero, vector.loop_var: zero}
        *others, last = (substitute(substitute(index, axes), start) for index in load.indices)
        lanes = int(vector.extent)
        return [ask(load.source, [*others, last + lanes * v], L1) for v in range(int(vectors.extent))]

    def ahead(loops: Sequence[Any], _: Any) -> list[Any]:
        k = loops[-1].loop_var
        is_first = [loop.loop_var == 0 for loop in loops[kernel.depth - kernel.rows : kernel.depth]]
        coming = tirx.SeqStmt([*asked(k + _ROWS_AHEAD), packed(k + one)])
        return [tirx.IfThenElse(tirx.all(*is_first, k < rows.extent - 1), coming, None)]

    begins = with_body(whole, tirx.SeqStmt([packed(zero), *rest]))
    stages = [begins if stage.same_as(whole) else stage for stage in root_stages(func)]
    return before_steps(with_stages(func, stages, func.body.block.alloc_buffers), kernel, ahead)
