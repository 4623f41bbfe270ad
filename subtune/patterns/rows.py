"""Reductions along whole rows or columns: softmax, normalisation, means."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import is_var_plus_units
from subtune.tir.blocks import extents_of
from subtune.tir.expressions import variables


@dataclass(frozen=True, slots=True)
class Rowwise:
    """Reductions along whole rows (softmax, normalisation, mean): `rows` independent rows of `length` elements."""

    rows: int
    length: int


@dataclass(frozen=True, slots=True)
class Columns:
    """Reductions that keep the innermost axis: `outer` times `columns` independent ones of `length` elements each.

    `group` adjacent columns belong together (group norm).
    """

    outer: int
    columns: int
    length: int
    group: int


def rows_or_columns(sch: Schedule, reductions: list[Any]) -> Rowwise | Columns | NotApplicable:
    """Rows are the axes all reductions share, and come first in every one; columns where those are innermost."""
    by_columns = columns(sch, reductions)
    if not isinstance(by_columns, NotApplicable):
        return by_columns
    rows, length = None, 1
    for block in reductions:
        spatial: list[int] = []
        reduced: list[int] = []
        for iv in sch.get(block).iter_vars:
            if not isinstance(iv.dom.extent, tirx.IntImm):
                return NotApplicable("symbolic extents")
            kind = int(iv.iter_type)
            if kind == tirx.IterVar.DataPar and reduced:
                return NotApplicable("a reduction is not along the innermost axes")
            (reduced if kind == tirx.IterVar.CommReduce else spatial).append(int(iv.dom.extent))
        if rows is not None and rows != spatial:
            return NotApplicable("the reductions do not share their rows")
        rows, length = spatial, max(length, prod(reduced))
    return Rowwise(prod(rows or ()), length)


def columns(sch: Schedule, reductions: list[Any]) -> Columns | NotApplicable:
    """The reductions as ones that keep the innermost axis, or why they are none. The longest ones decide."""
    extents = {block: extents_of(sch.get(block)) for block in reductions}
    if any(found is None for found in extents.values()):
        return NotApplicable("symbolic extents")
    longest = max(prod(found or ()) for found in extents.values())
    group = 1
    result = None
    for block_rv, found in extents.items():
        block = sch.get(block_rv)
        kept = [iv.var for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
        indices = block.writes[0].region
        if not kept or not indices or not indices[-1].min.same_as(kept[-1]):
            return NotApplicable("a reduction's innermost axis is not kept")
        sizes = {iv.var: extent for iv, extent in zip(block.iter_vars, found or (), strict=True)}
        spatial = prod(sizes[var] for var in kept)
        if prod(found or ()) < longest:
            if sizes[kept[-1]] > 0 and result is not None and result.columns % sizes[kept[-1]] == 0:
                group = max(group, result.columns // sizes[kept[-1]])
            continue
        for region in block.reads:
            if len(region.region) and not is_var_plus_units(
                region.region[-1].min, kept[-1], {var for var, extent in sizes.items() if extent == 1}
            ):
                return NotApplicable("an operand is not contiguous along the innermost kept axis")
        columns = sizes[kept[-1]]
        result = Columns(spatial // columns, columns, longest // spatial, 1)
    return replace(result, group=group) if result is not None else NotApplicable("no reduction")


def reads_columns(node: Any, column: Any) -> bool:
    """Whether what is read lies along the columns, or does not depend on them."""
    for region in node.reads:
        if not region.region:
            continue
        *others, innermost = [dim.min for dim in region.region]
        if any(column in variables(index) for index in others):
            return False
        if column in variables(innermost) and not innermost.same_as(column):
            pieces = [innermost.a, innermost.b] if isinstance(innermost, tirx.Add) else []
            if not any(piece.same_as(column) for piece in pieces):
                return False
    return True
