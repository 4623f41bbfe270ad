"""Two reductions that are a mean and the squared distances from it: group norm, instance norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.patterns.rows import reads_columns
from subtune.patterns.stages import iterations
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.expressions import is_same, variables
from subtune.tir.substitute import substitute

LARGE = 8
"""A stage with so many times fewer iterations than the largest is left to one thread."""


def large_reductions(sch: Schedule) -> list[str]:
    """Names of the reductions that take about as long as the largest stage."""
    blocks = all_blocks(sch)
    most = max(iterations(sch, b) for b in blocks)
    return [sch.get(b).name_hint for b in blocks if is_reduction(sch.get(b)) and iterations(sch, b) * LARGE > most]


@dataclass(frozen=True, slots=True)
class Moments:
    """`total` sums `value` over the reduced axes, `squares` sums its squared distance from `mean`, of kept axes."""

    total: Any
    squares: Any
    value: Any
    mean: Any

    def axes(self, kind: int) -> list[Any]:
        return [iv for iv in self.total.iter_vars if int(iv.iter_type) == kind]

    @property
    def outer(self) -> int:
        return _extent(self.axes(tirx.IterVar.DataPar)[:-1])

    @property
    def columns(self) -> int:
        return _extent(self.axes(tirx.IterVar.DataPar)[-1:])

    @property
    def length(self) -> int:
        return _extent(self.axes(tirx.IterVar.CommReduce))

    def at(self, outer: Any, row: Any, column: Any) -> dict[Any, Any]:
        """The axes' values; `outer` counts the kept axes but the last one, `row` the reduced ones."""
        *others, last = self.axes(tirx.IterVar.DataPar)
        return _unfolded(others, outer) | _unfolded(self.axes(tirx.IterVar.CommReduce), row) | {last.var: column}


def moments_of(first: Any, second: Any) -> Moments | NotApplicable:
    """What two reductions (sblocks) are a sum and the squared distances of."""
    value, square = _summed(first), _summed(second)
    if value is None or square is None:
        return NotApplicable("not two sums of float32")
    if len(first.iter_vars) != len(second.iter_vars):
        return NotApplicable("the sums have different axes")
    kinds = [(int(iv.iter_type), int(iv.dom.extent)) for iv in first.iter_vars]
    if kinds != [(int(iv.iter_type), int(iv.dom.extent)) for iv in second.iter_vars]:
        return NotApplicable("the sums have different axes")
    square = substitute(square, {b.var: a.var for a, b in zip(first.iter_vars, second.iter_vars, strict=True)})
    if not isinstance(square, tirx.Mul) or not is_same(square.a, square.b) or not isinstance(square.a, tirx.Sub):
        return NotApplicable("the second sum is not one of squared differences")
    found = Moments(first, second, value, square.a.b)
    reduced = {iv.var for iv in found.axes(tirx.IterVar.CommReduce)}
    if not is_same(square.a.a, value) or variables(found.mean) & reduced:
        return NotApplicable("the differences are not from what the first sum gives")
    kept = found.axes(tirx.IterVar.DataPar)
    if not kept or not first.body.indices[-1].same_as(kept[-1].var):
        return NotApplicable("the innermost axis is reduced")
    if not reads_columns(first, kept[-1].var):
        return NotApplicable("no vectors of columns")
    return found


def _summed(block: Any) -> Any | None:
    """What a block adds to a sum of float32 that starts with 0."""
    update = block.body
    if not isinstance(update, tirx.BufferStore) or str(update.buffer.dtype) != "float32":
        return None
    value = update.value
    if not isinstance(value, tirx.Add) or not isinstance(value.a, ir.TensorLoad):
        return None
    starts = getattr(block.init, "value", None)
    is_zero = isinstance(starts, tirx.FloatImm) and float(starts) == 0.0
    return value.b if is_zero and value.a.source.same_as(update.buffer) else None


def _unfolded(axes: Sequence[Any], index: Any) -> dict[Any, Any]:
    """The values of axes that `index` counts together, the last one fastest."""
    values: dict[Any, Any] = {}
    for at, iv in reversed(list(enumerate(axes))):
        values[iv.var] = index % iv.dom.extent if at else index
        index = tirx.floordiv(index, iv.dom.extent)
    return values


def _extent(axes: Sequence[Any]) -> int:
    return prod(int(iv.dom.extent) for iv in axes)
