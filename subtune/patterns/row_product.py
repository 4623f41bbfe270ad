"""A contraction that knows numbers of its rows: reads them in its epilogue, or makes moments of what it stores.

    N[m, 0]       = h(sum over g of t(P[m, g]), ..)       numbers of the rows, from parameters
    X[m, n]       = f(sum over k of A[m, k] * B[k, n], N[m, 0], ..)
    means, squares = `row_moments` of X                    results of their own, where there are three

`front` is the contraction with its epilogue alone, of which the numbers are parameters. Names are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.reductions import Blocks, product
from subtune.tir.blocks import is_reduction
from subtune.tir.expressions import is_load_of, is_same, loads, number, replace_loads
from subtune.tir.row_moments import COLUMNS

_WITH_MOMENTS = 3  # outputs


@dataclass(frozen=True, slots=True)
class RowStep:
    """A number of every row: `value`, or the sum of `value` over `axis`, which has `extent` values.

    Over the variable `row`, loads of parameters, and `known`: variables that stand for the numbers before it.
    """

    row: Any
    axis: Any | None
    extent: int
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class RowProduct:
    """`front` is the contraction; `numbers` says which of its parameters are which of `steps`.

    `known` are the variables of `steps`, one for each. `params` are those of the function that was read: another
    workload that is equal has others of the same places.
    """

    front: Workload
    steps: tuple[RowStep, ...]
    known: tuple[Any, ...]
    numbers: tuple[tuple[int, int], ...]
    has_moments: bool
    params: tuple[Any, ...]


def row_product(func: PrimFunc, num_outputs: int) -> RowProduct | NotApplicable:
    """An unscheduled PrimFunc as such a contraction, or why it is none."""
    if num_outputs not in (1, _WITH_MOMENTS):
        return NotApplicable(f"{num_outputs} outputs")
    blocks = Blocks.of(func)
    if isinstance(blocks, NotApplicable):
        return blocks
    sums = [block for block in blocks.made.values() if is_reduction(block)]
    anchors = [block.body.buffer for block in sums if _is_contraction(block)]
    if len(anchors) != 1:
        return NotApplicable(f"{len(anchors)} contractions")
    (anchor,) = anchors
    outputs = list(func.params[-num_outputs:])
    x = outputs[0]
    if num_outputs == _WITH_MOMENTS and not _are_moments(blocks, *outputs):
        return NotApplicable("the other results are no moments of the first")
    needed = blocks.needed_for(x)
    behind = {buffer for buffer in needed if anchor in blocks.needed_for(buffer)}
    before = [block.body.buffer for block in sums if block.body.buffer in needed - behind]
    rows = [b for b in blocks.made if b in needed - behind and blocks.needed_for(b) & set(before) and _is_column(b)]
    if not rows and num_outputs == 1:
        return NotApplicable("nothing is known of its rows")
    read = {load.source for b in needed - set(rows) for load in loads(blocks.made[b].body.value)}
    numbers = [b for b in rows if b in read]
    inputs = [p for p in func.params if blocks.is_param(p)]
    front = Workload.of(blocks.part(func, needed - set(rows), [*inputs, *numbers, x]), 1)
    steps = _steps(blocks, rows)
    if isinstance(steps, NotApplicable):
        return steps
    known, found = steps
    places = tuple((len(inputs) + i, rows.index(b)) for i, b in enumerate(numbers))
    return RowProduct(front, found, known, places, num_outputs == _WITH_MOMENTS, tuple(func.params))


def _is_contraction(block: Any) -> bool:
    """Whether two different tensors are multiplied: squares are none."""
    factors = product(block)
    if factors is None:
        return False
    a, b = factors
    return not is_same(a, b) and all(isinstance(_uncast(f), ir.TensorLoad) for f in (a, b))


def _is_column(buffer: Any) -> bool:
    return all(int(dim) == 1 for dim in buffer.shape[1:])


def _uncast(value: Any) -> Any:
    return value.value if isinstance(value, tirx.Cast) else value


def _steps(blocks: Blocks, rows: list[Any]) -> tuple[tuple[Any, ...], tuple[RowStep, ...]] | NotApplicable:
    """A variable for each of `rows`, in the order of the program, and how it is computed."""
    known = {buffer: tirx.Var(f"number{i}", "float32") for i, buffer in enumerate(rows)}
    found = []
    for buffer in rows:
        block = blocks.made[buffer]
        axes = [iv for iv in block.iter_vars if int(iv.dom.extent) > 1]
        spatial = [iv.var for iv in axes if int(iv.iter_type) == tirx.IterVar.DataPar]
        reduced = [iv for iv in axes if int(iv.iter_type) == tirx.IterVar.CommReduce]
        if str(buffer.dtype) != "float32" or len(spatial) != 1 or len(reduced) > 1:
            return NotApplicable("a number of each row is none")
        value = block.body.value
        if is_reduction(block):
            if not isinstance(value, tirx.Add) or not is_load_of(value.a, buffer) or number(block.init.value) != 0.0:
                return NotApplicable("a reduction is no sum")
            value = value.b
        at_first = {iv.var: tirx.const(0, iv.var.ty.dtype) for iv in block.iter_vars if int(iv.dom.extent) == 1}
        value = tvm_ffi.structural_map(value, (ir.Var, lambda var, first=at_first: first.get(var, var)))
        for load in loads(value):
            if load.source in known and not load.indices[0].same_as(spatial[0]):
                return NotApplicable("a number needs another row's")
            if load.source not in known and not blocks.is_param(load.source):
                return NotApplicable("a number needs what is no parameter")
        for other, name in known.items():
            value = replace_loads(value, other, name)
        axis, extent = (reduced[0].var, int(reduced[0].dom.extent)) if reduced else (None, 1)
        found.append(RowStep(spatial[0], axis, extent, value))
    return tuple(known.values()), tuple(found)


def _are_moments(blocks: Blocks, x: Any, means: Any, squares: Any) -> bool:
    """Whether `means` and `squares` are what `row_moments` makes of `x`."""
    made = blocks.made
    if not all(b in made for b in (x, means, squares)) or x not in blocks.needed_for(means):
        return False
    totals = [load.source for load in loads(made[means].body.value)]
    if len(totals) != 1 or totals[0] not in made or blocks.needed_for(squares) - blocks.needed_for(x) != {
        totals[0], means, squares
    }:  # fmt: skip
        return False
    total_sum, square_sum = (_sum_over_columns(made[buffer], x) for buffer in (totals[0], squares))
    if total_sum is None or square_sum is None:
        return False
    (total, element, _), (square, other, at) = total_sum, square_sum
    away = other - tirx.BufferLoad(means, list(at))
    of_one = tirx.BufferLoad(totals[0], list(made[means].body.indices)) * tirx.const(1 / COLUMNS, "float32")
    return is_same(total, element) and is_same(square, away * away) and is_same(made[means].body.value, of_one)


def _sum_over_columns(block: Any, x: Any) -> tuple[Any, Any, Any] | None:
    """What `block` adds up over `COLUMNS` columns of `x`, an element of these in float32, and where it stores."""
    value = block.body.value
    reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
    at = block.body.indices
    if not is_reduction(block) or not isinstance(value, tirx.Add) or len(reduced) != 1 or len(at) != 2:
        return None
    if int(reduced[0].dom.extent) != COLUMNS or not is_load_of(value.a, block.body.buffer):
        return None
    width = tirx.const(COLUMNS, at[1].ty.dtype)
    element: Any = tirx.BufferLoad(x, [at[0], at[1] * width + reduced[0].var])
    return value.b, element if str(x.dtype) == "float32" else element.astype("float32"), at
