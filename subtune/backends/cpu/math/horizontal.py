"""A vector of partial results to one number: halved by shuffles, in registers.

    for k in range(16):  total = total + partial[k]     ->     v8 = p[0:8] + p[8:16];  v4 = ...;  total = v1

One after the other, sixteen sums take as long as a short row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.tir.expressions import is_load_of
from subtune.tir.shuffle import lanes_of, shuffled


def fold_partials(func: PrimFunc, names: Collection[str], lanes: int) -> PrimFunc:
    """`func` with the loops round the blocks called `names`, sums over one short axis, as vector arithmetic."""

    def fold(loop: Any) -> Any:
        realize = loop.body
        if not isinstance(realize, SBlockRealize) or realize.block.name_hint not in names:
            return loop
        return _folded(loop, realize, lanes) or loop

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, fold)))


def folded(vectors: Sequence[Any], combine: Callable[[Any, Any], Any]) -> tuple[list[Any], Any]:
    """Statements that halve vectors, 2 ** n of as many lanes, until two numbers are left; what combines those."""
    stmts: list[Any] = []
    lanes = lanes_of(vectors[0])
    dtype = str(vectors[0].ty.dtype).partition("x")[0]

    def bind(expr: Any, count: int) -> Any:
        var = tirx.Var("v", f"{dtype}x{count}" if count > 1 else dtype)
        stmts.append(tirx.Bind(var, expr))
        return var

    vectors = [bind(vector, lanes) for vector in vectors]
    while len(vectors) > 1:
        vectors = [bind(combine(a, b), lanes) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    (vector,) = vectors
    while lanes > 2:
        lanes //= 2
        low, high = (shuffled((vector,), range(begin, begin + lanes)) for begin in (0, lanes))
        vector = bind(combine(low, high), lanes)
    low, high = (bind(shuffled((vector,), [i]), 1) for i in (0, 1))
    return stmts, combine(low, high)


def _folded(loop: Any, realize: Any, lanes: int) -> Any | None:
    block = realize.block
    reduced = [i for i, iv in enumerate(block.iter_vars) if int(iv.iter_type) == tirx.IterVar.CommReduce]
    store, extent = block.body, loop.extent
    if len(reduced) != 1 or not isinstance(store, tirx.BufferStore) or not isinstance(extent, tirx.IntImm):
        return None
    width, value, k = int(extent), store.value, block.iter_vars[reduced[0]].var
    if not isinstance(value, tirx.Add | tirx.Max | tirx.Min | tirx.Mul) or not is_load_of(value.a, store.buffer):
        return None
    partial = value.b
    if not isinstance(partial, ir.TensorLoad) or not partial.indices[-1].same_as(k) or width & (width - 1) or width < 2:
        return None
    lanes = min(lanes, width)
    *others, _ = partial.indices
    starts = [tirx.const(i, "int64") for i in range(0, width, lanes)]
    step = tirx.const(1, "int64")
    vectors = [tirx.BufferLoad(partial.source, [*others, tirx.Ramp(at, step, lanes)]) for at in starts]
    stmts, total = folded(vectors, type(value))
    stmts.append(tirx.BufferStore(store.buffer, total, list(store.indices)))
    keep = [i for i in range(len(block.iter_vars)) if i not in reduced]
    reads = [tirx.BufferRegion(r.source, [ir.Range(tirx.const(0, "int64"), d) for d in r.source.shape])
             for r in block.reads]  # fmt: skip
    new = SBlock([block.iter_vars[i] for i in keep], reads, block.writes, block.name_hint, tirx.SeqStmt(stmts))
    return SBlockRealize([realize.iter_values[i] for i in keep], realize.predicate, new)
