"""A vector of partial results to one number: halved by shuffles, in registers.

    for k in range(16):  total = total + partial[k]     ->     v8 = p[0:8] + p[8:16];  v4 = ...;  total = v1

One after the other, sixteen sums take as long as a short row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import product
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.tir.expressions import is_load_of, variables
from subtune.tir.shuffle import lanes_of, shuffled, unpacked
from subtune.tir.substitute import substitute


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
    stmts, bind = _variables_like(vectors[0])
    lanes = lanes_of(vectors[0])
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


def is_any(vector: Any) -> Any:
    """Whether some lane of a vector of truths is true."""
    return tirx.call_llvm_pure_intrin("bool", "llvm.vector.reduce.or", vector)


def fold_tile(func: PrimFunc, name: str) -> PrimFunc:
    """`func` with the loops over rows, columns and partial results round the block called `name` as vector arithmetic.

    Four vectors are folded together: half as many shuffles as each by itself.
    """

    def fold(loop: Any) -> Any:
        loops = [loop]
        while isinstance(loops[-1].body, tirx.For):
            loops.append(loops[-1].body)
        realize = loops[-1].body
        if len(loops) != 3 or not isinstance(realize, SBlockRealize) or realize.block.name_hint != name:
            return loop
        return _tile(loops, realize)

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, fold)))


def _tile(loops: Sequence[Any], realize: Any) -> Any:
    block, store = realize.block, realize.block.body
    both = zip(block.iter_vars, realize.iter_values, strict=True)
    kept = [(iv, value) for iv, value in both if int(iv.iter_type) != tirx.IterVar.CommReduce]
    zero, sides = tirx.const(0, "int64"), [loop.loop_var for loop in loops[:2]]
    moving = [next(iv.var for iv, value in kept if side in variables([value])) for side in sides]
    combine, partial = type(store.value), store.value.b
    vector = tirx.Ramp(zero, tirx.const(1, "int64"), int(loops[2].extent))

    def at(index: Any, place: Sequence[int]) -> Any:
        moved = {var: var + tirx.const(by, "int64") for var, by in zip(moving, place, strict=True) if by}
        return substitute(index, moved)

    stmts: list[Any] = []
    places = list(product(*(range(int(loop.extent)) for loop in loops[:2])))
    for first in range(0, len(places), 4):
        four = places[first : first + 4]
        vectors = [
            tirx.BufferLoad(partial.source, [*(at(i, place) for i in partial.indices[:-1]), vector]) for place in four
        ]
        made, totals = _together(vectors, combine) if len(four) == 4 else _apart(vectors, combine)
        stmts += made
        stmts += [
            tirx.BufferStore(store.buffer, total, [at(i, place) for i in store.indices])
            for place, total in zip(four, totals, strict=True)
        ]
    reads, writes = ([_whole(region) for region in regions] for regions in (block.reads, block.writes))
    new = SBlock([iv for iv, _ in kept], reads, writes, block.name_hint, tirx.SeqStmt(stmts))
    return SBlockRealize([substitute(value, dict.fromkeys(sides, zero)) for _, value in kept], realize.predicate, new)


def _whole(region: Any) -> Any:
    return tirx.BufferRegion(region.source, [ir.Range(tirx.const(0, "int64"), dim) for dim in region.source.shape])


def _apart(vectors: Sequence[Any], combine: Callable[[Any, Any], Any]) -> tuple[list[Any], list[Any]]:
    stmts: list[Any] = []
    totals = []
    for vector in vectors:
        made, total = folded([vector], combine)
        stmts += made
        totals.append(total)
    return stmts, totals


def _together(vectors: Sequence[Any], combine: Callable[[Any, Any], Any]) -> tuple[list[Any], list[Any]]:
    """Statements that fold four vectors, and the four numbers."""
    stmts, bind = _variables_like(vectors[0])
    lanes = lanes_of(vectors[0])

    def joined(pair: Sequence[Any], size: int) -> Any:
        return bind(combine(*(shuffled(pair, half) for half in unpacked(lanes, size))), lanes)

    a, b, c, d = (bind(vector, lanes) for vector in vectors)
    four = joined((joined((a, b), 1), joined((c, d), 1)), 2)
    while lanes > 4:
        lanes //= 2
        low, high = (shuffled((four,), range(begin, begin + lanes)) for begin in (0, lanes))
        four = bind(combine(low, high), lanes)
    return stmts, [shuffled((four,), [i]) for i in range(4)]


def _variables_like(vector: Any) -> tuple[list[Any], Callable[[Any, int], Any]]:
    """Statements, none so far, and what adds one: a variable for an expression of so many lanes of the same type."""
    stmts: list[Any] = []
    dtype = str(vector.ty.dtype).partition("x")[0]

    def bind(expr: Any, lanes: int) -> Any:
        var = tirx.Var("v", f"{dtype}x{lanes}" if lanes > 1 else dtype)
        stmts.append(tirx.Bind(var, expr))
        return var

    return stmts, bind


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
    new = SBlock(
        [block.iter_vars[i] for i in keep],
        [_whole(read) for read in block.reads],
        block.writes,
        block.name_hint,
        tirx.SeqStmt(stmts),
    )
    return SBlockRealize([realize.iter_values[i] for i in keep], realize.predicate, new)
