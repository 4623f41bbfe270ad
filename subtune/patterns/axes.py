"""The axes of a reduction and how its operands are read along them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.tir.expressions import variables


class Role(StrEnum):
    """Of an axis, as in an einsum: which accesses it indexes.

    C[batch, m, n] += A[batch, m, k] * B[batch, n, k]
    """

    BATCH = "batch"
    M = "m"
    N = "n"
    K = "k"


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop of the anchor: its position among the block's iterators, its extent, and its role."""

    index: int
    extent: int
    role: Role


class Sliding(NamedTuple):
    """An index `axis * stride + tap * dilation` of a window: positions of a spatial and of a reduced axis."""

    axis: int
    stride: int
    tap: int
    dilation: int


@dataclass(frozen=True, slots=True)
class Operand:
    """One read of the anchor: position among the block's reads, shape, and the axis that runs along each dim.

    `axes` has -1 for a dim that no single axis indexes; where a window slides along it, `windows` says how. `param` is
    the PrimFunc parameter that is read, or -1 for the result of a prologue block.
    """

    read: int
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...]
    windows: tuple[Sliding | None, ...]
    param: int
    is_constant: bool


def operand_of(func: PrimFunc, block: Any, load: ir.TensorLoad, axes_of: dict[Any, int]) -> Operand:
    """A load of a block as an operand; `axes_of` gives the position of each of the block's axes."""
    read = next(i for i, region in enumerate(block.reads) if region.source.same_as(load.source))
    param = next((i for i, p in enumerate(func.params) if p.same_as(load.source)), -1)
    constants = {int(i) for i in func.attrs.get("layout_free_buffers", ())}
    return Operand(
        read=read,
        shape=tuple(int(d) for d in load.source.shape),
        dtype=str(load.source.dtype),
        axes=tuple(axes_of.get(index, -1) if isinstance(index, ir.Var) else -1 for index in load.indices),
        windows=tuple(_window_of(index, block, axes_of) for index in load.indices),
        param=param,
        is_constant=param in constants,
    )


def _window_of(index: Any, block: Any, axes_of: dict[Any, int]) -> Sliding | None:
    """`h * stride + kh * dilation` with h spatial and kh reduced."""
    if not isinstance(index, tirx.Add):
        return None
    terms = [_scaled(side, axes_of) for side in (index.a, index.b)]
    if terms[0] is None or terms[1] is None:
        return None
    kinds = [int(block.iter_vars[axis].iter_type) for axis, _ in (terms[0], terms[1])]
    if kinds == [tirx.IterVar.CommReduce, tirx.IterVar.DataPar]:
        terms.reverse()
    elif kinds != [tirx.IterVar.DataPar, tirx.IterVar.CommReduce]:
        return None
    (h, stride), (kh, dilation) = terms[0], terms[1]
    return Sliding(h, stride, kh, dilation)


def _scaled(expr: Any, axes_of: dict[Any, int]) -> tuple[int, int] | None:
    """`axis * constant` as (axis, constant)."""
    factor = 1
    if isinstance(expr, tirx.Mul) and isinstance(expr.b, tirx.IntImm):
        expr, factor = expr.a, int(expr.b)
    return (axes_of[expr], factor) if isinstance(expr, ir.Var) and expr in axes_of else None


def is_var_plus_units(index: Any, var: Any, unit: set[Any]) -> bool:
    """Whether `index` is `var`, or `var` plus axes of extent one."""
    if isinstance(index, tirx.Add):
        sides = (index.a, index.b)
        return any(one.same_as(var) and variables(other) <= unit for one, other in (sides, sides[::-1]))
    return bool(index.same_as(var))
