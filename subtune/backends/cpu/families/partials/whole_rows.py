"""A norm row by row: what a row is reduced to, and then its elements, while it is in the cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer

from subtune.backends.cpu.families.partials.pieces import Shares
from subtune.backends.cpu.families.partials.rows import Rows
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.row_elements import RowElements, row_elements
from subtune.patterns.runs import Run, is_reduced
from subtune.patterns.strided import Strided, strided
from subtune.tir.blocks import all_blocks, is_reduction, root_stages, stage_block, with_stages, written
from subtune.tir.expressions import loads
from subtune.tir.statements import in_vectors, integer, sequence, serial, store
from subtune.tir.substitute import substitute


def row_by_row(sch: Schedule, output: str, unroll: int, lanes: int, shares: Shares) -> Kernel | NotApplicable:
    """The kernel of a workload whose reductions share their rows. Raises ScheduleError."""
    rows = _rows_of(sch)
    if isinstance(rows, NotApplicable):
        return rows
    nodes = {block: sch.get(block) for block in all_blocks(sch)}
    for block, node in nodes.items():  # on the stack, if it fits: memory from the pool costs a call a row
        is_own = is_reduction(node) or isinstance(row_elements(node, rows), RowElements)
        if node.name_hint != output and is_own and _is_read_by_row(node.body.buffer, list(nodes.values()), rows):
            sch.set_scope(block, 0, "local")
    func = sch.mod["main"]
    before: list[Any] = []
    parts: list[Callable[[Any], Any]] = []
    blocks = [stage_block(stage) for stage in root_stages(func)]
    for stage, block in zip(root_stages(func), blocks, strict=True):
        found = _part(block, rows, unroll, lanes, shares)
        is_own = block.name_hint == output or _is_read_by_row(block.body.buffer, blocks, rows)
        if callable(found) and is_own:
            parts.append(found)
        elif _reads(block, func.params):  # what is computed of weights alone
            before.append(stage)
        else:
            return found if isinstance(found, NotApplicable) else NotApplicable("rows read what others make")
    body = shares.each(rows, lambda row: sequence(*(part(row) for part in parts)))
    return Kernel(with_stages(func, [*before, written("rows", body)], func.body.block.alloc_buffers))


def _reads(block: Any, params: Sequence[Any]) -> bool:
    """Whether a stage reads nothing but parameters."""
    return all(any(one.source.same_as(param) for param in params) for one in loads(block.body))


def _is_read_by_row(buffer: Any, blocks: Sequence[Any], rows: int) -> bool:
    """Whether all who read what a stage makes read of it what belongs to their own row."""
    numel = prod(int(d) for d in buffer.shape)
    readers = [
        block
        for block in blocks
        if not block.body.buffer.same_as(buffer) and any(one.source.same_as(buffer) for one in loads(block.body.value))
    ]
    return numel % rows == 0 and all(_reads_own(block, buffer, rows, numel // rows) for block in readers)


def _reads_own(block: Any, buffer: Any, rows: int, share: int) -> bool:
    """Whether a row of `block` reads no elements of `buffer` but its own `share`."""
    analyzer = Analyzer()
    row: Any = tirx.Var("row", "int64")
    analyzer.bind(row, ir.Range(integer(0), integer(rows)))
    for iv in block.iter_vars:
        analyzer.bind(iv.var, iv.dom)
    value = block.body.value
    if is_reduction(block):
        row = _counted([iv for iv in block.iter_vars if not is_reduced(iv)])
    else:
        found = row_elements(block, rows)
        if isinstance(found, NotApplicable):
            return False
        for iv in (iv for run in found.runs for iv in run.axes):
            analyzer.bind(iv.var, iv.dom)
        value = substitute(found.value, found.lead.at(row))
    for one in (one for one in loads(value) if one.source.same_as(buffer)):
        place = integer(0)
        for index, extent in zip(one.indices, buffer.shape, strict=True):
            place = place * extent + index
        if not analyzer.can_prove_equal(tirx.floordiv(place, integer(share)), row):
            return False
    return True


def _counted(axes: Sequence[Any]) -> Any:
    """The axes as one, the last one fastest."""
    index: Any = integer(0)
    for iv in axes:
        index = index * iv.dom.extent + iv.var
    return index


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
