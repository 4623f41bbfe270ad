"""A contraction whose rows are normalised, recognised from the TIR: layer norm or RMS norm of what a product makes.

    S[.., m, n]   = sum over k of ...                 the contraction
    X[.., m, n]   = f(S[.., m, n])                    its epilogue: bias, residual; a result of its own, or not
    R1[.., m]     = sum over n of g1(X[.., m, n])
    R2[.., m]     = sum over n of g2(X[.., m, n], R1[.., m])
    out[.., m, n] = h(X[.., m, n], R1[.., m], R2[.., m])

The contraction with its epilogue is a workload of its own, `front`, as all that knows contractions reads it. Names are
never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, sym, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import HALVES
from subtune.core.workload import Workload
from subtune.patterns.reductions import Blocks, Scope, common_indices, product
from subtune.tir.blocks import is_reduction
from subtune.tir.expressions import is_load_of, is_same, loads, number, replace_loads
from subtune.tir.rebuild import ForeignError, in_float32
from subtune.tir.substitute import substitute

_MAX_SUMS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Normed:
    """`front` makes X, which is stored as well where `stores_x`.

    `axes` are those of X and of the result, the columns last. `value` is what is stored, over `x` and `totals`; each of
    `terms` is what one of `totals` adds up over the columns, over `x` and the totals before it. All of float32, and of
    loads of the function's `params`. `out` is the parameter that is stored, at `axes`.
    """

    front: Workload
    stores_x: bool
    axes: tuple[Any, ...]
    x: Any
    totals: tuple[Any, ...]
    terms: tuple[Any, ...]
    value: Any
    out: Any
    params: tuple[Any, ...]
    """Of the function that was read: another workload that is equal has others of the same places."""

    @property
    def columns(self) -> int:
        return int(self.out.shape[-1])


def normed(func: PrimFunc, num_outputs: int) -> Normed | NotApplicable:
    """An unscheduled PrimFunc as such a norm, or why it is none."""
    if num_outputs > 2:
        return NotApplicable(f"{num_outputs} outputs")
    blocks = Blocks.of(func)
    if isinstance(blocks, NotApplicable):
        return blocks
    first, *sums = [block for block in blocks.made.values() if is_reduction(block)]
    if product(first) is None:
        return NotApplicable("the first reduction is no contraction")
    if not 1 <= len(sums) <= _MAX_SUMS:
        return NotApplicable(f"{len(sums)} reductions after the first")
    outputs = list(func.params[-num_outputs:])
    x = _made_by_epilogue(blocks, first.body.buffer, {block.body.buffer for block in sums}, outputs)
    if x is None:
        return NotApplicable("the reductions do not read one result of the first")
    out = next(output for output in outputs if not output.same_as(x))
    try:
        tail = Blocks.of(in_float32(blocks.after(func, x)))
    except ForeignError as e:
        return NotApplicable(str(e))
    if isinstance(tail, NotApplicable):
        return tail
    front = Workload.of(blocks.until(func, x), 1)
    return _read(Scope(tail, sym.Analyzer()), front, tuple(func.params), x, out)


def _made_by_epilogue(blocks: Blocks, first: Any, sums: set[Any], outputs: list[Any]) -> Any | None:
    """The tensor through which alone all that follows depends on the contraction `first`; the one that is stored, or
    the last one before its copies.
    """
    for buffer in reversed(list(blocks.made)):
        needed = blocks.needed_for(buffer)
        if first not in needed or needed & sums or list(buffer.shape) != list(outputs[-1].shape):
            continue
        rest = [blocks.made[made] for made in blocks.made if made not in needed]
        read = {load.source for block in rest for load in loads(block.body.value)}
        stored = {output for output in outputs if output in needed}
        if read & needed <= {buffer} and stored <= {buffer} and len(outputs) - len(stored) == 1:
            return buffer if stored else _source(blocks, buffer)
    return None


def _source(blocks: Blocks, buffer: Any) -> Any:
    """What `buffer` is a copy of, of 16 bits perhaps: then no more is to be kept."""
    block = blocks.made.get(buffer)
    value = block.body.value if block is not None and not is_reduction(block) else None
    if isinstance(value, tirx.Cast) and str(buffer.dtype) not in HALVES:
        value = value.value
    if block is None or not isinstance(value, ir.TensorLoad) or value.source not in blocks.made:
        return buffer
    same = all(is_same(i, j) for i, j in zip(value.indices, block.body.indices, strict=True))
    return _source(blocks, value.source) if same else buffer


def _read(scope: Scope, front: Workload, params: tuple[Any, ...], source: Any, out: Any) -> Normed | NotApplicable:
    block = scope.blocks.made.get(out)
    if block is None or is_reduction(block):
        return NotApplicable("the result is not computed for every element")
    scope.enter(block)
    axes = tuple(block.body.indices)
    x, totals, terms = tirx.Var("x", "float32"), list[Any](), list[Any]()
    sums = {made: b for made, b in scope.blocks.made.items() if is_reduction(b)}
    value = scope.expand(block.body.value)
    pending = [value]
    found: dict[Any, Any] = {}
    while pending:  # the result's own totals first, then those that they need
        for load in loads(pending.pop()):
            if load.source in sums and load.source not in found:
                term = _term(scope, sums[load.source], load, axes)
                if isinstance(term, NotApplicable):
                    return term
                found[load.source] = term
                pending.append(term)
    if set(found) != set(sums):
        return NotApplicable("a total that the result does not need")
    names = {made: tirx.Var(f"total{i}", "float32") for i, made in enumerate(sums)}
    for expr in (value, *found.values()):
        at = common_indices(expr, source)
        if at is not None and not all(is_same(i, j) for i, j in zip(at, axes, strict=True)):
            return NotApplicable("the tensor between is read elsewhere than at the element itself")
        own = [load for load in loads(expr) if load.source not in sums and not load.source.same_as(source)]
        if not all(scope.blocks.is_param(load.source) for load in own) or (at is None and expr is value):
            return NotApplicable("the result needs what is not there")

    def over_values(expr: Any) -> Any:
        expr = replace_loads(expr, source, x)
        for made, name in names.items():
            expr = replace_loads(expr, made, name)
        return expr

    for made in sums:  # in the order of the program: each needs earlier ones only
        totals.append(names[made])
        terms.append(over_values(found[made]))
    stores_x = any(param.same_as(source) for param in params)
    return Normed(front, stores_x, axes, x, tuple(totals), tuple(terms), over_values(value), out, params)


def _term(scope: Scope, block: Any, load: Any, axes: tuple[Any, ...]) -> Any | NotApplicable:
    """What `block`, a sum over the columns that is read at `load`, adds up for the element at `axes`."""
    value, init = block.body.value, getattr(block.init, "value", None)
    if not isinstance(value, tirx.Add) or not is_load_of(value.a, block.body.buffer) or number(init) != 0.0:
        return NotApplicable("a reduction is no sum")
    reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce and int(iv.dom.extent) > 1]
    kept = [index for index in load.indices if not isinstance(index, tirx.IntImm)]
    rows = [axis for axis in axes[:-1] if scope.extent(axis) > 1]
    if len(reduced) != 1 or int(reduced[0].dom.extent) != scope.extent(axes[-1]):
        return NotApplicable("a sum is not one over the columns")
    scope.enter(block)
    if len(kept) != len(rows) or not all(index.same_as(row) for index, row in zip(kept, rows, strict=True)):
        return NotApplicable("a sum is not one of the row itself")
    at = dict(zip(block.body.indices, load.indices, strict=True)) | {reduced[0].var: axes[-1]}
    at |= {iv.var: tirx.const(0, "int64") for iv in block.iter_vars if iv.var not in at}
    return scope.expand(substitute(value.b, at))
