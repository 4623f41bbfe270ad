"""Tiles that have more rows than there are: the last row is copied, computed and stored again.

    t[r, k] = a[r, k] if r < rows else 0     ->     t[r, k] = a[min(r, rows - 1), k]
    if r < rows: y[r, n] = f(sum[r, n], b[r, n])     ->     m = min(r, rows - 1); y[m, n] = f(sum[r, n], b[m, n])

Whoever stores it stores the same. A comparison in front of every load keeps nvcc from starting the loads of a tile
together: each would wait for what the one before it brings.
Blocks ask for it with the annotation `subtune_free_rows`, the place of the rows among their axes: those that copy a
tile, and those that store what is computed of it. `subtune_free_columns` is for the copies of the other operand, whose
rows are columns of the results: these are stored if there are such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.tir.expressions import choice_of
from subtune.tir.substitute import substitute

FREE_ROWS_ATTR, FREE_COLUMNS_ATTR = "subtune_free_rows", "subtune_free_columns"


@tvm.transform.module_pass(opt_level=0, name="subtune.FreeRows")  # type: ignore[untyped-decorator]
def free_rows(mod: IRModule, _context: PassContext) -> IRModule:
    """Run first: blocks still have their axes."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _rewritten(func) if isinstance(func, PrimFunc) else func
    return result


def _rewritten(func: PrimFunc) -> PrimFunc:
    rows = _Rows()
    of_copies = tvm_ffi.structural_map(func.body, (SBlock, rows.copied))
    if of_copies.same_as(func.body):
        return func
    body = tvm_ffi.structural_map(of_copies, (SBlockRealize, rows.stored))
    return PrimFunc(func.params, body, func.ret_type, func.attrs)


class _Rows:
    """Of one function. What is computed of a row that was copied again is what is computed of the last one; of zeros it
    is not: only as many rows as a copy has may be stored again."""

    def __init__(self) -> None:
        self._limits: list[Any] = []
        self._analyzer = tvm.sym.Analyzer()

    def copied(self, block: Any) -> Any:
        """The block of a copy that has zeros past the last row without them."""
        row = _row(block, FREE_ROWS_ATTR, FREE_COLUMNS_ATTR)
        choice = None if row is None else choice_of(block.body.value)
        if choice is None:
            return block
        condition, there, zero = choice
        limits, kept = _limits(condition, lambda side: side.same_as(row))
        if len(limits) != 1:
            return block
        if FREE_ROWS_ATTR in block.annotations:
            self._limits += limits
        last = {row: _last(row, limits[0])}
        value = substitute(there, last)
        if kept:
            value = tirx.if_then_else(tirx.all(*(substitute(one, last) for one in kept)), value, zero)
        body = tirx.BufferStore(block.body.buffer, value, block.body.indices)
        return _with(block, body, _moved(block.reads, last), block.writes)

    def stored(self, realize: Any) -> Any:
        """The block that computes what is stored, if there is such a row, doing so with the last one instead."""
        block, same = realize.block, self._analyzer.can_prove_equal
        row = _row(block, FREE_ROWS_ATTR)
        if row is None:
            return realize
        values = dict(zip((axis.var for axis in block.iter_vars), realize.iter_values, strict=True))
        limits, kept = _limits(realize.predicate, lambda side: same(side, values[row]))
        if len(limits) != 1 or not any(same(limits[0], limit) for limit in self._limits):
            return realize
        last = {row: _last(row, limits[0])}
        of_sums = tvm_ffi.structural_map(block.body, (ir.TensorLoad, lambda load: _elsewhere(load, last)))
        body = tirx.BufferStore(of_sums.buffer, of_sums.value, _of_memory(of_sums.buffer, of_sums.indices, last))
        made = _with(block, body, _moved(block.reads, last), _moved(block.writes, last))
        return SBlockRealize(realize.iter_values, tirx.all(tirx.const(True), *kept), made)


def _elsewhere(load: Any, values: Mapping[Any, Any]) -> Any:
    return tirx.BufferLoad(load.source, _of_memory(load.source, load.indices, values))


def _of_memory(buffer: Any, indices: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
    """Where an element lies: in the GPU's memory there is none past the last row."""
    return [substitute(index, values) if buffer.scope() == "global" else index for index in indices]


def _row(block: Any, *attrs: str) -> Any | None:
    """The axis of the rows, of a block that asks for free ones by one of the annotations."""
    place = next((block.annotations[attr] for attr in attrs if attr in block.annotations), None)
    return None if place is None or not isinstance(block.body, tirx.BufferStore) else block.iter_vars[int(place)].var


def _limits(condition: Any, is_row: Callable[[Any], bool]) -> tuple[list[Any], list[Any]]:
    """What has to hold for `condition` to: what rows are below, and the rest."""
    if isinstance(condition, tirx.And):
        (a, kept), (b, others) = (_limits(side, is_row) for side in (condition.a, condition.b))
        return a + b, kept + others
    if isinstance(condition, tirx.LT) and is_row(condition.a):
        return [condition.b], []
    return [], [condition]


def _last(row: Any, limit: Any) -> Any:
    return tirx.min(row, limit - tirx.IntImm(limit.ty, 1))


def _moved(regions: Sequence[Any], values: Mapping[Any, Any]) -> list[Any]:
    """The regions as they are in the GPU's memory."""
    moved = []
    for one in regions:
        firsts = _of_memory(one.source, [axis.min for axis in one.region], values)
        ranges = [ir.Range.from_min_extent(first, axis.extent) for first, axis in zip(firsts, one.region, strict=True)]
        moved.append(tirx.BufferRegion(one.source, ranges))
    return moved


def _with(block: Any, body: Any, reads: Sequence[Any], writes: Sequence[Any]) -> Any:
    return SBlock(
        block.iter_vars, reads, writes, block.name_hint, body, block.init,
        block.alloc_buffers, block.match_buffers, block.annotations,
    )  # fmt: skip
