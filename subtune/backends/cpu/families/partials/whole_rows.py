"""A norm row by row: what a row is reduced to, and then its elements, while it is in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm.s_tir import Schedule

from subtune.backends.cpu.families.partials.pieces import Shares
from subtune.backends.cpu.families.partials.rows import Rows
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.row_elements import RowElements, row_elements
from subtune.patterns.runs import Run
from subtune.patterns.strided import Strided, strided
from subtune.tir.blocks import all_blocks, is_reduction, root_stages, stage_block, with_stages, written
from subtune.tir.expressions import loads
from subtune.tir.statements import in_vectors, sequence, serial, store
from subtune.tir.substitute import substitute


def row_by_row(sch: Schedule, output: str, unroll: int, lanes: int, shares: Shares) -> Kernel | NotApplicable:
    """The kernel of a workload whose reductions share their rows. Raises ScheduleError."""
    rows = _rows_of(sch)
    if isinstance(rows, NotApplicable):
        return rows
    for block in all_blocks(sch):  # on the stack, if it fits: memory from the pool costs a call a row
        node = sch.get(block)
        if node.name_hint != output and (is_reduction(node) or isinstance(row_elements(node, rows), RowElements)):
            sch.set_scope(block, 0, "local")
    func = sch.mod["main"]
    before: list[Any] = []
    parts: list[Callable[[Any], Any]] = []
    for stage in root_stages(func):
        found = _part(stage_block(stage), rows, unroll, lanes, shares)
        if callable(found):
            parts.append(found)
        elif _reads(stage_block(stage), func.params):  # what is computed of weights alone
            before.append(stage)
        else:
            return found
    body = shares.each(rows, lambda row: sequence(*(part(row) for part in parts)))
    return Kernel(with_stages(func, [*before, written("rows", body)], func.body.block.alloc_buffers))


def _reads(block: Any, params: Sequence[Any]) -> bool:
    """Whether a stage reads nothing but parameters."""
    return all(any(one.source.same_as(param) for param in params) for one in loads(block.body))


def _rows_of(sch: Schedule) -> int | NotApplicable:
    """How many rows the reductions share."""
    counts: set[int] = set()
    for block in all_blocks(sch):
        if is_reduction(sch.get(block)):
            found = strided(sch.get(block))
            if isinstance(found, NotApplicable):
                return found
            if not _is_of_rows(found):
                return NotApplicable("what is reduced are no rows")
            counts.add(found.size(is_reduced=False))
    return counts.pop() if len(counts) == 1 else NotApplicable("the reductions do not share their rows")


def _is_of_rows(found: Strided) -> bool:
    """Whether all that is reduced lies behind all that is kept."""
    kinds = [run.is_reduced for run in found.runs]
    return kinds == sorted(kinds)


def _part(block: Any, rows: int, unroll: int, lanes: int, shares: Shares) -> Callable[[Any], Any] | NotApplicable:
    """What makes the statement of a row."""
    if is_reduction(block):
        found = strided(block)
        return found if isinstance(found, NotApplicable) else Rows(found, unroll, lanes, shares).whole_row
    share = row_elements(block, rows)
    return share if isinstance(share, NotApplicable) else lambda row: _of_row(share, row, lanes)


def _of_row(found: RowElements, row: Any, lanes: int) -> Any:
    """The statement that computes a row's elements, in vectors."""

    def put(values: Mapping[Any, Any]) -> Any:
        return store(found.target, substitute(found.value, values), *(substitute(i, values) for i in found.indices))

    def along(runs: Sequence[Run], values: Mapping[Any, Any]) -> Any:
        if not runs:
            return put(values)
        run, *others = runs
        if not others:
            return in_vectors(run.extent, lanes, lambda i: put({**values, **run.at(i)}))
        return serial(run.extent, lambda i: along(others, {**values, **run.at(i)}))

    return along(found.runs, found.lead.at(row))
