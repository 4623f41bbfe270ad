"""Rows written section by section: where elements come from is asked once for a section, not for every vector."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.patterns.sections import Section, sections_of
from subtune.tir.blocks import with_stages, written
from subtune.tir.substitute import substitute


def in_sections(func: PrimFunc, block: Any, lanes: int, is_serial: bool) -> PrimFunc | None:
    """`func`, which is one elementwise `block`, with loops over the sections of its rows; None where they are many.

        for rows (parallel):
          for n:  vectors of section 0, the last one as wide as what is left
          for n:  vectors of section 1, ...

    Args:
        lanes: elements of a vector.
    """
    *outer, last = block.iter_vars
    sections = sections_of(block.body.value, last.var, int(last.dom.extent))
    if not sections:
        return None
    row = tirx.Var("row", "int64")
    rows, left = {}, row
    for axis in reversed(outer):
        rows[axis.var] = left % axis.dom.extent
        left = left // axis.dom.extent
    stmts = [substitute(_vectors(section, block, last.var, lanes), rows) for section in sections]
    body = tirx.SeqStmt(stmts) if len(stmts) > 1 else stmts[0]
    extent = prod(int(axis.dom.extent) for axis in outer)
    kind = tirx.ForKind.SERIAL if is_serial or extent == 1 else tirx.ForKind.PARALLEL
    loop = tirx.For(row, _int(0), _int(extent), kind, body)
    return with_stages(func, [written(block.name_hint, loop)], func.body.block.alloc_buffers)


def _vectors(section: Section, block: Any, axis: Any, lanes: int) -> Any:
    """A section in vectors; one of its last elements where they are no whole vector."""
    length = section.end - section.begin
    width = min(lanes, length)
    vector, lane = tirx.Var("vector", "int64"), tirx.Var("lane", "int64")
    position = {axis: vector * _int(width) + lane + _int(section.begin)}
    indices = [substitute(index, position) for index in block.body.indices]
    store: Any = tirx.BufferStore(block.body.buffer, substitute(section.value, position), indices)
    if length % width:
        store = tirx.IfThenElse(vector * _int(width) + lane < _int(length), store, None)
    kind = tirx.ForKind.VECTORIZED if width > 1 else tirx.ForKind.SERIAL
    inner = tirx.For(lane, _int(0), _int(width), kind, store)
    return tirx.For(vector, _int(0), _int(-(-length // width)), tirx.ForKind.SERIAL, inner)


def _int(value: int) -> Any:
    return tirx.const(value, "int64")
