"""Reductions over small windows that keep the innermost axis: depthwise convolution, pooling, resizing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import Axis, Operand, Role, is_var_plus_units, operand_of
from subtune.tir.blocks import extents_of
from subtune.tir.expressions import loads, variables


@dataclass(frozen=True, slots=True)
class Window:
    """C[..., c] = reduce over small windows of A[..., c]: depthwise convolution and pooling.

    The innermost axis `c` indexes every operand contiguously, so it is the vector axis, but for the constants in
    `to_pack` (depthwise weights `[c, kh, kw, 1]`), which can be packed `[kh, kw, c]`. `is_padded`: a block computes
    what is read, its padding most often. `is_tabled`: tables say where what is read lies, as in resizing. `repeats`:
    neighbouring results that share what they read, `A[..., c // repeats]`; more than 1 for who asks.
    """

    axes: tuple[Axis, ...]
    acc_dtype: str
    to_pack: tuple[Operand, ...]
    is_padded: bool
    is_tabled: bool
    repeats: int = 1

    def of_role(self, role: Role | str) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.role == role)


def window(sch: Schedule, block_rv: Any) -> Window | NotApplicable:
    """The anchor as a window reduction that keeps the innermost axis, or why it is none."""
    return _window(sch, block_rv, shares=False)


def shared_window(sch: Schedule, block_rv: Any) -> Window | NotApplicable:
    """The same where several results may share a channel: depthwise convolution with a multiplier."""
    return _window(sch, block_rv, shares=True)


def _window(sch: Schedule, block_rv: Any, shares: bool) -> Window | NotApplicable:
    block = sch.get(block_rv)
    if not isinstance(block.body, tirx.BufferStore):
        return NotApplicable("the anchor stores more than one value")
    extents = extents_of(block)
    if extents is None:
        return NotApplicable("the anchor has symbolic extents")
    store = block.body
    axes_of = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    if not store.indices:
        return NotApplicable("the output is a scalar")
    last = store.indices[-1]
    if last not in axes_of:
        return NotApplicable("the innermost output index is no axis")
    unit = {iv.var for iv, extent in zip(block.iter_vars, extents, strict=True) if extent == 1}
    to_pack, repeats = [], 1
    for load in loads(store.value):
        if load.source.same_as(store.buffer) or not any(last in variables(i) for i in load.indices):
            continue
        if is_var_plus_units(load.indices[-1], last, unit):
            continue
        if shares and (shared := _sharing(load.indices[-1], last, unit)):
            repeats = max(repeats, shared)
            continue
        operand = operand_of(sch.mod["main"], block, load, axes_of)
        if not operand.is_constant or -1 in operand.axes:
            return NotApplicable("an operand is not contiguous along the innermost output axis")
        to_pack.append(operand)
    axes = tuple(
        Axis(i, extent, _role(iv, last)) for i, (iv, extent) in enumerate(zip(block.iter_vars, extents, strict=True))
    )
    sources = [load.source for load in loads(store.value) if not load.source.same_as(store.buffer)]
    params = sch.mod["main"].params
    is_padded = not all(any(source.same_as(param) for param in params) for source in sources)
    is_tabled = any(loads(index) for load in loads(store.value) for index in load.indices)
    return Window(axes, str(store.buffer.dtype), tuple(to_pack), is_padded, is_tabled, repeats)


def _sharing(index: Any, last: Any, unit: set[Any]) -> int:
    """n, where `index` is `last // n`, or that plus axes of extent one; 0: it is not."""
    sides = [index.a, index.b] if isinstance(index, tirx.Add) else [index]
    quotients = [side for side in sides if isinstance(side, tirx.FloorDiv)]
    others = [side for side in sides if not isinstance(side, tirx.FloorDiv)]
    if len(quotients) != 1 or any(not variables(other) <= unit for other in others):
        return 0
    quotient = quotients[0]
    return int(quotient.b) if quotient.a.same_as(last) and isinstance(quotient.b, tirx.IntImm) else 0


def _role(axis: Any, innermost: Any) -> Role:
    if int(axis.iter_type) == tirx.IterVar.CommReduce:
        return Role.K
    return Role.N if axis.var.same_as(innermost) else Role.M
