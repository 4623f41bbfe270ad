"""Where the extreme of a row is, in two reductions of one value each, which vectors can do.

    at, best = (at, best) if best > x[k] or (best == x[k] and at < k) else (k, x[k])
->  best = max(best, x[k]);     at = min(at, k if x[k] == best else the largest index)

The second one reads the row from cache. Of integers only: a NaN is equal to nothing.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.tir.blocks import is_reduction, nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import is_load_of, is_same
from subtune.tir.substitute import substitute

_COMBINERS = {tirx.GT: tirx.Max, tirx.LT: tirx.Min}


def in_two(func: PrimFunc) -> PrimFunc | None:
    """`func` with its only reduction, an ArgMax or an ArgMin of integers, as two; None where it is something else."""
    stages = root_stages(func)
    reductions = [i for i, stage in enumerate(stages) if is_reduction(stage_block(stage))]
    if len(reductions) != 1:
        return None
    (at,) = reductions
    block = stage_block(stages[at])
    read = _read(block)
    if read is None:
        return None
    combiner, index, best, value, k = read
    allocated = list(func.body.block.alloc_buffers)
    if any(not any(buffer.same_as(own) for own in allocated) for buffer in (index.buffer, best.buffer)):
        return None
    last = tirx.max_value("int32")
    place = tirx.decl_buffer(index.buffer.shape, "int32", f"{index.buffer.name}_at")
    here, extreme = (tirx.BufferLoad(buffer, list(index.indices)) for buffer in (place, best.buffer))
    init = next(store for store in block.init.seq if store.buffer.same_as(best.buffer))
    found = tirx.Select(value.equal(extreme), tirx.Cast("int32", k), last)
    again = {iv.var: tirx.Var(iv.var.name, iv.var.ty) for iv in block.iter_vars}
    own = [tirx.IterVar(iv.dom, again[iv.var], int(iv.iter_type)) for iv in block.iter_vars]
    update, clear = (
        substitute(tirx.BufferStore(place, stored, list(index.indices)), again)
        for stored in (tirx.Min(here, found), last)
    )
    larger = tirx.BufferStore(best.buffer, combiner(extreme, value), list(best.indices))
    two = [
        nest(f"{block.name_hint}_best", block.iter_vars, {}, larger, init),
        nest(f"{block.name_hint}_at", own, {}, update, clear),
    ]

    def follow(load: ir.TensorLoad) -> Any:
        if not load.source.same_as(index.buffer):
            return load
        return tirx.Cast(str(index.buffer.dtype), tirx.BufferLoad(place, list(load.indices)))

    after = []
    for stage in stages[at + 1 :]:
        later = stage_block(stage)
        body = tvm_ffi.structural_map(later.body, (ir.TensorLoad, follow))
        after.append(nest(later.name_hint, later.iter_vars, {}, body, later.init))
    kept = [buffer for buffer in allocated if not buffer.same_as(index.buffer)]
    return with_stages(func, [*stages[:at], *two, *after], [*kept, place])


def _read(block: Any) -> tuple[Any, Any, Any, Any, Any] | None:
    """What combines the values, the stores of the index and of the value, what is compared, and the reduced axis."""
    reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
    parts = list(block.body.seq) if isinstance(block.body, tirx.SeqStmt) else []
    kinds = (tirx.Bind, tirx.Bind, tirx.BufferStore, tirx.BufferStore)
    if len(reduced) != 1 or len(parts) != 4 or not all(map(isinstance, parts, kinds)):
        return None
    first, second, index, best = parts
    k, extent = reduced[0].var, reduced[0].dom.extent
    if not index.value.same_as(first.var) or not best.value.same_as(second.var) or not isinstance(extent, tirx.IntImm):
        return None
    here, now = (tirx.BufferLoad(store.buffer, list(store.indices)) for store in (index, best))
    choice = second.value
    if not isinstance(choice, tirx.Select) or type(choice.condition) not in _COMBINERS:
        return None
    compare = type(choice.condition)
    if not is_load_of(choice.condition.a, best.buffer):
        return None
    if not str(best.buffer.dtype).startswith("int") or int(extent) >= 2**31 - 1:
        return None
    value = choice.condition.b
    is_further = compare(now, value)
    is_kept = tirx.Or(is_further, tirx.And(now.equal(value), here < k))
    expected = (tirx.Select(is_kept, here, k), tirx.Select(is_further, now, value))
    if not is_same(first.value, expected[0]) or not is_same(choice, expected[1]):
        return None
    return _COMBINERS[compare], index, best, value, k
