"""A reduction as it lies in memory: runs of kept and of reduced axes, in the order in which its input has them.

sum over the axes 0 and 3 of x[57, 40, 25, 31]   ->   runs of 57 reduced, 1000 kept, 31 reduced
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from tvm import tirx

from subtune.core.kernel import NotApplicable
from subtune.patterns.runs import Run, joined, joins, strides_of
from subtune.tir.expressions import is_conditional, is_load_of, loads

_COMBINERS = (tirx.Add, tirx.Max, tirx.Min, tirx.Mul)


@dataclass(frozen=True, slots=True)
class Strided:
    """`store = store <combine> value`, begun with `identity`.

    Attributes:
        runs: from the outermost in memory to the innermost. Kept and reduced ones take turns, but where an operand
            reads neighbours in different ways.
        is_joined: for each run but the last, whether every operand reads it and the next one as if they were one.
    """

    block: Any
    value: Any
    runs: tuple[Run, ...]
    is_joined: tuple[bool, ...]

    @property
    def identity(self) -> Any:
        return self.block.init.value

    @property
    def dtype(self) -> str:
        return str(self.block.body.buffer.dtype)

    def combine(self, a: Any, b: Any) -> Any:
        return type(self.block.body.value)(a, b)

    def size(self, is_reduced: bool) -> int:
        return prod(run.extent for run in self.runs if run.is_reduced == is_reduced)


def strided(block: Any) -> Strided | NotApplicable:
    """What one reduction (an sblock) reads, if that is one array from beginning to end, and others that repeat."""
    update = block.body
    if not isinstance(update, tirx.BufferStore) or not isinstance(block.init, tirx.BufferStore):
        return NotApplicable("a reduction of several values")
    value = update.value
    if not isinstance(value, _COMBINERS) or not is_load_of(value.a, update.buffer):
        return NotApplicable("neither a sum, a product, nor a bound")
    if any(not isinstance(iv.dom.extent, tirx.IntImm) for iv in block.iter_vars):
        return NotApplicable("symbolic extents")
    if is_conditional(value.b):
        return NotApplicable("what is reduced depends on a condition")
    axes = [iv for iv in block.iter_vars if int(iv.dom.extent) > 1]
    read = loads(value.b)
    strides = [strides_of(load.source, load.indices, block.iter_vars, axes) for load in read]
    known = [found for found in strides if found is not None]
    if not axes or not known or len(known) < len(read):
        return NotApplicable("an operand is read at places that are not linear in the axes")
    main = max(known, key=lambda found: sum(map(bool, found)))
    order = sorted(range(len(axes)), key=lambda i: -main[i])
    if not _is_read_once(main, axes, order):
        return NotApplicable("an operand's elements are read several times, or not along memory")
    runs = joined(order, axes, known)
    is_joined = tuple(joins(a[-1], b[0], axes, known) for a, b in pairwise(runs))
    return Strided(block, value.b, tuple(Run.of([axes[i] for i in run]) for run in runs), is_joined)


def _is_read_once(strides: Sequence[int], axes: Sequence[Any], order: Sequence[int]) -> bool:
    """Whether no element is read twice, and those of the innermost axis are neighbours."""
    reach = 1
    for i in reversed(order):
        if strides[i] < reach:
            return False
        reach = strides[i] * int(axes[i].dom.extent)
    return strides[order[-1]] == 1
