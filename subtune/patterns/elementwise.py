"""No reduction: how an elementwise block walks through memory, and which operands lie transposed.

out[n, h, w, c] = x[n, c, h, w]      axes n, (h w), c; x is contiguous along (h w), the output along c
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx

from subtune.core.kernel import NotApplicable
from subtune.tir.expressions import choices, conjuncts, is_conditional, is_same, is_zero_padding, loads

FEW_INPUTS = 4
"""Of which a choice is no chain of questions."""


@dataclass(frozen=True, slots=True)
class TransposedAccess:
    """`groups`: the output's axes, neighbours in every operand merged; an operand is contiguous along group `b`.

    The output is contiguous along group `a`, the last one. `extents` are those of the groups. `read`: what is read
    along group `a`; zeros follow.
    """

    groups: tuple[tuple[int, ...], ...]
    extents: tuple[int, ...]
    b: int
    read: int

    @property
    def a(self) -> int:
        return len(self.groups) - 1


@dataclass(frozen=True, slots=True)
class Elementwise:
    """No reduction: `extent` output elements; `transposed` where an operand is contiguous along another axis.

    `padded`: the same where zeros follow what is read along the last axis, and else None.
    `row`: elements that lie one after the other in the output and in all operands that differ along them; of operands
    whose places are chosen, or stand in tables, those of the last axis; 0 if unknown.
    `sections` of the `sectioned` positions along an axis are chosen alike (`patterns.sections`), 0 of one; `run`: the
    last axis behind it, 1 where that is the axis. Of few inputs it is: loops ask once where an outer position lies.
    `alike`: so many neighbours along the last axis, from any multiple of it on, are chosen alike.
    """

    extent: int
    transposed: TransposedAccess | None = None
    padded: TransposedAccess | None = None
    row: int = 0
    sections: int = 0
    sectioned: int = 0
    run: int = 1
    alike: int = 1


@dataclass(frozen=True, slots=True)
class Access:
    """One load: for every dim of the buffer the axis that runs along it (-1: none) and what is added to it."""

    axes: tuple[int, ...]
    offsets: tuple[int, ...]


def transposed_access(block: Any, pads: bool = False) -> TransposedAccess | NotApplicable:
    """The block (of an elementwise stage) as one with transposed operands, or why it has none.

    Args:
        pads: also one with zeros behind what it reads.
    """
    found = _read(block, pads)
    if isinstance(found, NotApplicable):
        return found
    extents, reads = found
    kept = [group for group in _groups(extents, reads) if prod(extents[axis] for axis in group) > 1]
    if len(kept) < 2:
        return NotApplicable("the operands lie as the output does")
    group_of = {axis: i for i, group in enumerate(kept) for axis in group}
    last = len(kept) - 1
    crossing = set()
    for _, access in reads:
        used = [group_of[axis] for axis in access.axes if axis in group_of]
        if last in used and used[-1] != last:
            crossing.add(used[-1])
    if len(crossing) != 1:
        return NotApplicable(
            "no operand lies transposed" if not crossing else "operands lie transposed in several ways"
        )
    sizes = tuple(prod(extents[axis] for axis in group) for group in kept)
    return TransposedAccess(tuple(kept), sizes, crossing.pop(), _end_of_reads(block) or sizes[-1])


def merged_axes(block: Any) -> tuple[tuple[int, ...], ...] | NotApplicable:
    """The block's axes, those together that are neighbours in the output and in every operand that has them."""
    found = _read(block)
    return found if isinstance(found, NotApplicable) else tuple(_groups(*found))


def _end_of_reads(block: Any) -> int:
    """n, where everything is read below the condition that the last axis is less than n, and zeros follow; else 0."""
    value, last = block.body.value, block.iter_vars[-1].var
    paddings = choices(value)  # each of one load
    ends = {_end(choice.args[0], last) if is_zero_padding(choice) else 0 for choice in paddings}
    return ends.pop() if len(ends) == 1 and len(loads(value)) == len(paddings) else 0


def _end(condition: Any, axis: Any) -> int:
    """n, where `condition` is `axis < n`, or that and `0 <= axis`; else 0."""
    begin = tirx.LE(tirx.const(0, str(axis.ty.dtype)), axis)
    wanted = [one for one in conjuncts(condition) if not is_same(one, begin)]
    is_end = len(wanted) == 1 and isinstance(wanted[0], tirx.LT) and wanted[0].a.same_as(axis)
    return int(wanted[0].b) if is_end and isinstance(wanted[0].b, tirx.IntImm) else 0


def _read(block: Any, pads: bool = False) -> tuple[list[int], list[tuple[Any, Access]]] | NotApplicable:
    """The extents of an elementwise block's axes, and what it reads."""
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        return NotApplicable("the block stores more than one value")
    if is_conditional(store.value) and not (pads and _end_of_reads(block)):
        return NotApplicable("what is read depends on conditions")
    axes = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    if [axes.get(index, -1) for index in store.indices] != list(range(len(axes))):
        return NotApplicable("the output is not indexed by its axes in their order")
    if not all(isinstance(iv.dom.extent, tirx.IntImm) for iv in block.iter_vars):
        return NotApplicable("symbolic extents")
    reads: list[tuple[Any, Access]] = []
    for load in loads(store.value):
        access = access_of(load, axes)
        if access is None:
            return NotApplicable("an index is more than an axis and a number")
        reads.append((load, access))
    return [int(iv.dom.extent) for iv in block.iter_vars], reads


def _groups(extents: list[int], reads: list[tuple[Any, Access]]) -> list[tuple[int, ...]]:
    groups: list[list[int]] = []
    for axis in range(len(extents)):
        if groups and all(_adjoin(groups[-1], axis, extents, load, access) for load, access in reads):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return [tuple(group) for group in groups]


def access_of(load: ir.TensorLoad, axes: dict[Any, int]) -> Access | None:
    """The indices of a load as axes plus numbers, or None."""
    found, offsets = [], []
    for index in load.indices:
        offset = 0
        if isinstance(index, tirx.Add) and isinstance(index.b, tirx.IntImm):
            index, offset = index.a, int(index.b)
        if isinstance(index, tirx.IntImm):
            found.append(-1)
            offsets.append(int(index))
        elif isinstance(index, ir.Var) and index in axes:
            found.append(axes[index])
            offsets.append(offset)
        else:
            return None
    return Access(tuple(found), tuple(offsets))


def _adjoin(group: list[int], axis: int, extents: list[int], load: ir.TensorLoad, access: Access) -> bool:
    """Whether the axis follows the group in the operand as it does in the output, or neither is in it."""
    real = [one for one in group if extents[one] != 1]
    if extents[axis] == 1 or not real:
        return True
    before = real[-1]
    if before not in access.axes and axis not in access.axes:
        return True
    if before not in access.axes or axis not in access.axes:
        return False
    if access.axes.count(before) > 1 or access.axes.count(axis) > 1:
        return False
    dims = [dim for dim, extent in enumerate(load.source.shape) if int(extent) != 1]
    at_before, at = access.axes.index(before), access.axes.index(axis)
    if at_before not in dims or at not in dims or dims.index(at) != dims.index(at_before) + 1:
        return False
    return access.offsets[at] == 0 and int(load.source.shape[at]) == extents[axis]
