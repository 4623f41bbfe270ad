"""Elements written section by section: where elements come from is asked once for a section, not for every vector."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.patterns.sections import Section, sectioned
from subtune.tir.blocks import with_stages, written
from subtune.tir.substitute import substitute

_FEW_ROWS = 16
"""Outer rows that may be too few for all threads: what lies behind the sections is shared out, too."""

_MOST_SHARED = 16
"""Sections that threads share. Of what a thread is given, LLVM does not know that it does not overlap: it takes 1.4 s
to compile 32 of them, and 0.1 s in a function of one thread."""


def in_sections(func: PrimFunc, block: Any, lanes: int, is_serial: bool) -> PrimFunc | None:
    """`func`, which is one elementwise `block`, with loops over the sections of an axis; None where they are many.

        for rows, the positions on all other axes but the last (parallel):
          for section 0 of the axis:  vectors of the last axis, the last one as wide as what is left
          for section 1 of the axis:  ...

    Where the last axis itself has sections, their vectors follow one another. Of many outer rows, what lies behind the
    sections stays inside of them: it is read in one go.

    Args:
        lanes: elements of a vector.
    """
    found = sectioned(block, is_last=False)
    if found is None or (not is_serial and len(found.sections) > _MOST_SHARED):
        return None
    axes = list(block.iter_vars)
    outer, inner, last = axes[: found.axis], axes[found.axis + 1 : -1], axes[-1]
    rows = outer if _count(outer) >= _FEW_ROWS else [*outer, *inner]
    inside = [axis for axis in inner if axis not in rows]
    row = tirx.Var("row", "int64")
    places, left = {}, row
    for axis in reversed(rows):
        places[axis.var] = left % axis.dom.extent
        left = left // axis.dom.extent
    stmts = [_section(section, block, axes[found.axis], inside, last, lanes) for section in found.sections]
    body = tirx.SeqStmt([substitute(stmt, places) for stmt in stmts])
    extent = _count(rows)
    kind = tirx.ForKind.SERIAL if is_serial or extent == 1 else tirx.ForKind.PARALLEL
    loop = tirx.For(row, _int(0), _int(extent), kind, body)
    return with_stages(func, [written(block.name_hint, loop)], func.body.block.alloc_buffers)


def _count(axes: list[Any]) -> int:
    return prod(int(axis.dom.extent) for axis in axes)


def _section(section: Section, block: Any, axis: Any, inside: list[Any], last: Any, lanes: int) -> Any:
    if axis is last:
        return _vectors(section, block, last.var, lanes)
    stmt = _vectors(Section(0, int(last.dom.extent), section.value), block, last.var, lanes)
    for one in reversed(inside):
        stmt = tirx.For(one.var, _int(0), one.dom.extent, tirx.ForKind.SERIAL, stmt)
    position = tirx.Var("position", "int64")
    stmt = substitute(stmt, {axis.var: position + _int(section.begin)})
    return tirx.For(position, _int(0), _int(section.end - section.begin), tirx.ForKind.SERIAL, stmt)


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
