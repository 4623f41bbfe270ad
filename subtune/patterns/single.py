"""One reduction of any kind: what the general schedule asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.axes import Operand, operand_of
from subtune.tir.blocks import extents_of
from subtune.tir.expressions import loads, variables


@dataclass(frozen=True, slots=True)
class Access:
    """A read of the reduction: `lanes` and `steps` say how it moves with the innermost kept and reduced axis.

    0: not at all; 1: to the next element; 2: further. `rows`: whether it moves with the last kept axis but that one.
    """

    lanes: int
    steps: int
    rows: bool
    element_bytes: int


@dataclass(frozen=True, slots=True)
class Single:
    """C[*kept] = reduce over `reduced` (extents). `rows` is the position of the last kept axis but the innermost one.

    It is -1 where no such axis has two elements. `to_pack` are constants that have the innermost kept axis elsewhere
    than innermost; `accesses` count on them packed.
    """

    kept: tuple[int, ...]
    reduced: tuple[int, ...]
    rows: int
    to_pack: tuple[Operand, ...]
    accesses: tuple[Access, ...]

    @property
    def length(self) -> int:
        """Elements of a sum."""
        return prod(self.reduced)


def single(sch: Schedule, block_rv: Any) -> Single | NotApplicable:
    """The anchor as a reduction of one value that is stored at the kept axes, in their order; or why it is none."""
    block = sch.get(block_rv)
    if not isinstance(block.body, tirx.BufferStore) or block.init is None:
        return NotApplicable("the anchor stores more than one value")
    if extents_of(block) is None:
        return NotApplicable("the anchor has symbolic extents")
    kept = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
    reduced = [iv for iv in block.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
    store = block.body
    if len(store.indices) != len(kept) or not all(i.same_as(iv.var) for i, iv in zip(store.indices, kept, strict=True)):
        return NotApplicable("the anchor does not store at its own axes")
    lane = kept[-1].var if kept else None
    rows = max((d for d, iv in enumerate(kept[:-1]) if int(iv.dom.extent) > 1), default=-1)
    step = next((iv.var for iv in reversed(reduced) if int(iv.dom.extent) > 1), None)
    axes_of = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    to_pack, accesses = [], []
    for load in loads(store.value):
        if load.source.same_as(store.buffer):
            continue
        found = operand_of(sch.mod["main"], block, load, axes_of)
        is_packed = found.is_constant and found.axes.count(axes_of.get(lane, -2)) == 1 and -1 not in found.axes
        is_packed = is_packed and found.axes[-1] != axes_of.get(lane)
        if is_packed:
            to_pack.append(found)
        row = kept[rows].var if rows >= 0 else None
        accesses.append(Access(
            1 if is_packed else _moves(load.indices, lane), 2 if is_packed else _moves(load.indices, step),
            any(row in variables(index) for index in load.indices), max(1, dtype_bits(found.dtype) // 8),
        ))  # fmt: skip
    sizes = tuple(int(iv.dom.extent) for iv in kept), tuple(int(iv.dom.extent) for iv in reduced)
    return Single(*sizes, rows, tuple(to_pack), tuple(accesses))


def _moves(indices: Any, var: Any) -> int:
    if var is None or not any(var in variables(index) for index in indices):
        return 0
    *outer, last = indices
    if any(var in variables(index) for index in outer):
        return 2
    terms = [last]
    while any(isinstance(term, tirx.Add) for term in terms):
        terms = [side for term in terms for side in ((term.a, term.b) if isinstance(term, tirx.Add) else (term,))]
    return 1 if any(term.same_as(var) for term in terms) else 2
