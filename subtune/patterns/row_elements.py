"""A stage of elements that goes with rows: which of its axes count the rows, and what is a row's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from subtune.core.kernel import NotApplicable
from subtune.patterns.runs import Run, joined, strides_of
from subtune.tir.expressions import loads
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class RowElements:
    """`target[indices] = value`.

    Attributes:
        lead: the axes, or their outer parts, that count rows together.
        runs: of what is a row's own; what is stored lies along the last one. Empty where a row has one element.
    """

    target: Any
    value: Any
    indices: tuple[Any, ...]
    lead: Run
    runs: tuple[Run, ...]


def row_elements(block: Any, rows: int) -> RowElements | NotApplicable:
    """An injective sblock whose outermost axes count `rows`; an axis that counts more is taken apart."""
    update = block.body
    if not isinstance(update, tirx.BufferStore):
        return NotApplicable("several stores")
    if any(not isinstance(iv.dom.extent, tirx.IntImm) for iv in block.iter_vars):
        return NotApplicable("symbolic extents")
    parts = _taken_apart(block.iter_vars, rows)
    if parts is None:
        return NotApplicable(f"the outermost axes of {block.name_hint} do not count {rows} rows")
    lead, own, values = parts
    analyzer = Analyzer()
    for iv in (*lead, *own):
        analyzer.bind(iv.var, iv.dom)
    value = analyzer.simplify(substitute(update.value, values))
    indices = tuple(analyzer.simplify(substitute(index, values)) for index in update.indices)
    stored = strides_of(update.buffer, indices, (*lead, *own), own)
    if stored is None or stored != sorted(stored, reverse=True) or (own and stored[-1] != 1):
        return NotApplicable("what is stored does not lie along the innermost axis")
    read = [strides_of(load.source, load.indices, (*lead, *own), own) for load in loads(value)]
    known = [stored, *(found for found in read if found is not None)]
    is_linear = len(known) == len(read) + 1
    runs = joined(range(len(own)), own, known) if is_linear else [[i] for i in range(len(own))]
    return RowElements(
        update.buffer, value, indices, Run.of(lead), tuple(Run.of([own[i] for i in run]) for run in runs)
    )


def _taken_apart(axes: Sequence[Any], rows: int) -> tuple[list[Any], list[Any], dict[Any, Any]] | None:
    """Axes that count `rows`, axes of one row, and the values of those that were divided."""
    lead: list[Any] = []
    values: dict[Any, Any] = {}
    values |= {iv.var: tirx.const(0, "int64") for iv in axes if int(iv.dom.extent) == 1}
    axes = [iv for iv in axes if int(iv.dom.extent) > 1]
    for position, iv in enumerate(axes):
        extent = int(iv.dom.extent)
        if rows == 1:
            return lead, list(axes[position:]), values
        if rows % extent == 0:
            lead.append(iv)
            rows //= extent
            continue
        if extent % rows:
            return None
        outer, inner = (_axis(f"{iv.var.name}_{name}", n) for name, n in (("o", rows), ("i", extent // rows)))
        values[iv.var] = outer.var * tirx.const(extent // rows, "int64") + inner.var
        return [*lead, outer], [inner, *axes[position + 1 :]], values
    return (lead, [], values) if rows == 1 else None


def _axis(name: str, extent: int) -> Any:
    dom = ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64"))
    return tirx.IterVar(dom, tirx.Var(name, "int64"), tirx.IterVar.DataPar)
