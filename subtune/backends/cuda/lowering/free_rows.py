"""Copies of tiles that have more rows than there are: the last row again, instead of zeros.

    t[r, k] = a[r, k] if r < rows else 0     ->     t[r, k] = a[min(r, rows - 1), k]

What is computed of such rows is not stored. A comparison in front of every load keeps nvcc from starting the loads of
a tile together: each would wait for what the one before it brings.
A block that copies asks for it with the annotation `subtune_free_rows`, the place of the rows among its axes.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.s_tir import SBlock
from tvm.tirx import PrimFunc

from subtune.tir.substitute import substitute

FREE_ROWS_ATTR = "subtune_free_rows"
_IF = "prim.if_then_else"


@tvm.transform.module_pass(opt_level=0, name="subtune.FreeRows")  # type: ignore[untyped-decorator]
def free_rows(mod: IRModule, _context: PassContext) -> IRModule:
    """Run first: blocks still have their axes."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _rewritten(func) if isinstance(func, PrimFunc) else func
    return result


def _rewritten(func: PrimFunc) -> PrimFunc:
    body = tvm_ffi.structural_map(func.body, (SBlock, _clamped))
    return func if body.same_as(func.body) else PrimFunc(func.params, body, func.ret_type, func.attrs)


def _clamped(block: Any) -> Any:
    if FREE_ROWS_ATTR not in block.annotations or not isinstance(block.body, tirx.BufferStore):
        return block
    row = block.iter_vars[int(block.annotations[FREE_ROWS_ATTR])].var
    body, value = block.body, block.body.value
    if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != _IF:
        return block
    condition, there, zero = value.args
    limits = [one for one in _all_of(condition) if isinstance(one, tirx.LT) and one.a.same_as(row)]
    if len(limits) != 1:
        return block
    (limit,) = limits
    last = {row: tirx.min(row, limit.b - tirx.IntImm(limit.b.ty, 1))}
    kept = [substitute(one, last) for one in _all_of(condition) if not one.same_as(limit)]
    value = substitute(there, last)
    if kept:
        value = tirx.if_then_else(tirx.all(*kept), value, zero)
    reads = [_moved(region, last) for region in block.reads]
    annotations = {name: value for name, value in block.annotations.items() if name != FREE_ROWS_ATTR}
    return SBlock(
        block.iter_vars, reads, block.writes, block.name_hint, tirx.BufferStore(body.buffer, value, body.indices),
        block.init, block.alloc_buffers, block.match_buffers, annotations,
    )  # fmt: skip


def _all_of(condition: Any) -> list[Any]:
    """What has to hold for `condition` to."""
    if isinstance(condition, tirx.And):
        return [*_all_of(condition.a), *_all_of(condition.b)]
    return [condition]


def _moved(region: Any, values: dict[Any, Any]) -> Any:
    ranges = [ir.Range.from_min_extent(substitute(one.min, values), one.extent) for one in region.region]
    return tirx.BufferRegion(region.source, ranges)
