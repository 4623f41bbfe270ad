"""Packing a non-constant B inside the kernel (GEBP): per batch inside the parallel loop, or once at the root.

B[k, n] is copied along n. B[n, k], as in attention's scores, is turned in tiles of vectors (`shuffle.turned`): the
schedule marks the tile's loops, and `turn_marked` writes the shuffles, which no schedule primitive makes.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from subtune.forms.substitute import substitute
from subtune.templates.shuffle import turned
from subtune.templates.tile import extent_of, vector_width

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
    is_copy = isinstance(sch.get(packed).body.value, ir.TensorLoad)
    width = vector_width(extent_of(sch, last), lanes)
    turns = not is_along_n and is_copy and width == lanes and extent_of(sch, first) % lanes == 0
    if turns:
        no, ni = sch.split(first, [None, lanes])
        ko, ki = sch.split(last, [None, lanes])
        sch.reorder(no, ko, ki, ni)
        sch.annotate(ki, _TURNED, lanes)
        first = no
    elif width > 1:
        _, vec = sch.split(last, [None, width])
        sch.vectorize(vec)
    if at is None and not is_serial:
        sch.parallel(sch.fuse(*outer, first) if outer else first)
    return turns


def _inside(sch: Schedule, packed: Any, at: Any) -> list[Any]:
    """The packing's loops inside of `at`."""
    loops = sch.get_loops(packed)
    variables = [sch.get(loop).loop_var for loop in loops]
    return list(loops[variables.index(sch.get(at).loop_var) + 1 :])


def turn_marked(func: Any) -> Any:
    """`func` with the marked loops as shuffles."""

    def turn(loop: Any) -> Any:
        return _turn(loop, int(loop.annotations[_TURNED])) if _TURNED in loop.annotations else loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, turn)))


def _turn(loop: Any, lanes: int) -> Any:
    inner = loop.body
    realize = inner.body
    block = realize.block
    assert isinstance(realize, SBlockRealize), "the marked loops hold one block"
    values = {iv.var: value for iv, value in zip(block.iter_vars, realize.iter_values, strict=True)}

    def at(indices: Any, k: int, n: int) -> list[Any]:
        numbers = {loop.loop_var: tirx.const(k, "int64"), inner.loop_var: tirx.const(n, "int64")}
        return [substitute(substitute(i, values), numbers) for i in indices]

    def along(indices: list[Any]) -> list[Any]:
        *others, last = indices
        return [*others, tirx.Ramp(last, tirx.const(1, "int64"), lanes)]

    store, load = block.body, block.body.value
    rows, stmts = [], []
    for n in range(lanes):
        var = tirx.Var(f"b{n}", f"{load.source.dtype}x{lanes}")
        stmts.append(tirx.Bind(var, tirx.BufferLoad(load.source, along(at(load.indices, 0, n)))))
        rows.append(var)
    rounds, columns = turned(rows, "b")
    stmts += rounds
    stmts += [
        tirx.BufferStore(store.buffer, column, along(at(store.indices, k, 0))) for k, column in enumerate(columns)
    ]
    reads, writes = (
        [tirx.BufferRegion(buffer, [ir.Range(tirx.const(0, "int64"), d) for d in buffer.shape])]
        for buffer in (load.source, store.buffer)
    )
    return SBlockRealize([], True, SBlock([], reads, writes, block.name_hint, tirx.SeqStmt(stmts)))
