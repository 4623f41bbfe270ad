"""Sums of products of two operands, as in an einsum: matmul, batch matmul, convolution.

Axes are classified by which accesses they index: a *batch* axis indexes both operands and the output, an *m* axis the
first operand (activations) and the output, an *n* axis the second (weights) and the output, a *k* axis is reduced.
Names of functions, blocks or buffers are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import Axis, Operand, Role, operand_of
from subtune.tir.blocks import extents_of
from subtune.tir.expressions import is_load_of, variables


@dataclass(frozen=True, slots=True)
class Contraction:
    """C[batch, m, n] += A[batch, m, k] * B[batch, n, k], where A may be read through windows (convolution)."""

    axes: tuple[Axis, ...]
    a: Operand
    b: Operand
    acc_dtype: str
    per_group: int = 0
    """Columns n of one group in a grouped convolution, where A is read at `n // per_group * K + k`; 0: no groups."""

    def of_role(self, role: Role | str) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis.role == role)

    @property
    def read_share(self) -> float:
        """Of A's elements those that some window looks at: a 1x1 convolution of stride 2 reads a quarter."""
        extents = {axis.index: axis.extent for axis in self.axes}
        share = 1.0
        for window in filter(None, self.a.windows):
            share *= min(1.0, extents.get(window.tap, 1) / window.stride)
        return share

    def lanes(self, widest: int) -> int:
        """Elements of a vector along n: `widest`, or for groups the widest power of two that divides one."""
        while self.per_group % widest:
            widest //= 2
        return widest

    @property
    def groups(self) -> int:
        """1 where there are none."""
        return self.n.extent // self.per_group if self.per_group else 1

    @property
    def n(self) -> Axis:
        return self.of_role("n")[0]


def contraction(sch: Schedule, block_rv: Any) -> Contraction | NotApplicable:
    """The anchor as a contraction, or why it is none."""
    block = sch.get(block_rv)
    if not isinstance(block.body, tirx.BufferStore):
        return NotApplicable("the anchor stores more than one value")
    product = _added_product(block)
    if product is None:
        return NotApplicable("the anchor does not sum products of two operands")
    axes_of = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    extents = extents_of(block)
    if extents is None:
        return NotApplicable("the anchor has symbolic extents")
    store = block.body
    out_axes = [axes_of[v] for v in store.indices if v in axes_of]
    if not out_axes or len(out_axes) != len([iv for iv in block.iter_vars if int(iv.iter_type) == 0]):
        return NotApplicable("the anchor's output is not indexed by its own axes")
    first, second = product
    in_first, in_second = (
        {axes_of[v] for v in variables(list(load.indices)) if v in axes_of} for load in (first, second)
    )
    last = out_axes[-1]
    per_group = 0
    if last in in_first and last in in_second:
        groups = [group_size(load, block.iter_vars[last].var) for load in (first, second)]
        per_group = max(groups)
        for axes_in, group in zip((in_first, in_second), groups, strict=True):
            if group:
                axes_in.discard(last)
    if (last in in_first) == (last in in_second):
        return NotApplicable("the innermost output axis indexes both operands: no n axis")
    if last in in_first:
        first, second, in_first, in_second = second, first, in_second, in_first
    axes = []
    for i, (iv, extent) in enumerate(zip(block.iter_vars, extents, strict=True)):
        if int(iv.iter_type) == tirx.IterVar.CommReduce:
            role = Role.K
        elif i in in_first and i in in_second:
            role = Role.BATCH
        elif i in in_second:
            role = Role.N
        else:
            role = Role.M
        axes.append(Axis(i, extent, role))
    if sum(axis.role is Role.N for axis in axes) != 1:
        return NotApplicable("more than one n axis")
    func = sch.mod["main"]
    return Contraction(
        tuple(axes),
        operand_of(func, block, first, axes_of),
        operand_of(func, block, second, axes_of),
        str(store.buffer.dtype),
        per_group,
    )


def group_size(load: ir.TensorLoad, column: Any) -> int:
    """g where the load's innermost index is `column // g * K + k` and no other index has the column; else 0."""
    *others, index = load.indices
    if column in variables(others) or not isinstance(index, tirx.Add):
        return 0
    for group, k in ((index.a, index.b), (index.b, index.a)):
        if isinstance(group, tirx.Mul) and isinstance(group.b, tirx.IntImm):
            group = group.a
        if isinstance(group, tirx.FloorDiv) and group.a.same_as(column) and isinstance(group.b, tirx.IntImm):
            return 0 if column in variables(k) else int(group.b)
    return 0


def _added_product(block: Any) -> tuple[Any, Any] | None:
    """The two loads of `C[...] = C[...] + cast(A[...]) * cast(B[...])`, or None."""
    store = block.body
    value = store.value
    if not isinstance(value, tirx.Add) or not is_load_of(value.a, store.buffer):
        return None
    product = value.b
    if isinstance(product, tirx.Cast):
        product = product.value
    if not isinstance(product, tirx.Mul):
        return None
    found = [_single_load(side) for side in (product.a, product.b)]
    if found[0] is None or found[1] is None:
        return None
    return found[0], found[1]


def _single_load(expr: Any) -> Any | None:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr if isinstance(expr, ir.TensorLoad) else None
