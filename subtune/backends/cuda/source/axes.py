"""A block's axes at an element of a kernel, and expressions of the block there.

Where one number runs over several axes (a group's channels, rows and columns), each axis is a quotient or a remainder
of it. What reads these axes as they lie in memory is read at the number itself: no simplifier puts quotients and
remainders of a sum together again.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, sym, tirx

from subtune.backends.cuda.source.emit import const, load

BINARY = (
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.FloorDiv, tirx.FloorMod, tirx.Mod, tirx.Min, tirx.Max,
    tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or,
    tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.LShift, tirx.RShift,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    """Axes that `number` runs over, the last one fastest: `axis = before + number // stride % extent`.

    `axes` has each one's variable, `before` and `stride`.
    """

    axes: tuple[tuple[Any, Any, int], ...]
    number: Any


@dataclass(slots=True)
class Axes:
    """The indices of a block's axes, by their variables. What stands in `apart` is read index by index."""

    indices: dict[Any, Any]
    runs: tuple[Run, ...] = ()
    apart: Container[Any] = field(default=())

    def get(self, var: Any, default: Any = None) -> Any:
        return self.indices.get(var, default)

    def __or__(self, other: Axes) -> Axes:
        return Axes(self.indices | other.indices, self.runs + other.runs, self.apart)

    def of(self, buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """The element of `buffer` at `indices`, of the block's axes."""
        flat = self.flat(buffer, indices)
        if flat is None:
            return [substituted(index, self) for index in indices]
        return [*(const(0) for _ in indices[1:]), flat]

    def flat(self, buffer: Any, indices: Sequence[Any]) -> Any:
        """The number of the element at `indices`, of the block's axes, in `buffer`; None where a run does not help."""
        if not self.runs or not is_global(buffer) or buffer in self.apart:
            return None
        if any(loads_in(index) for index in indices):
            return None
        flat: Any = const(0)
        for index, extent in zip(indices, buffer.shape, strict=True):
            flat = flat * extent + index.astype("int64")
        is_whole = False
        for run in self.runs:
            if (whole := _along(flat, run)) is not None:
                flat, is_whole = whole, True
        return substituted(flat, self) if is_whole else None


def _along(flat: Any, run: Run) -> Any:
    """`flat` in terms of the run's number; None where it does not step through memory as the number does."""
    coefficients = sym.detect_linear_equation(flat, [var for var, _, _ in run.axes])
    if not coefficients or not all(isinstance(c, tirx.IntImm) for c in coefficients[:-1]):
        return None
    *steps, rest = coefficients
    step, odd = divmod(int(steps[-1]), run.axes[-1][2])
    if odd or not step or any(int(s) != step * stride for s, (_, _, stride) in zip(steps, run.axes, strict=True)):
        return None
    for s, (_, before, _) in zip(steps, run.axes, strict=True):
        rest = rest + before * const(int(s))
    return rest + run.number * const(step)


def substituted(expr: Any, axes: dict[Any, Any] | Axes) -> Any:
    """`expr` with its axes replaced; indices of 32 bits become ones of 64, as the kernels' variables are."""
    if isinstance(expr, ir.Var):
        return axes.get(expr, expr)
    if isinstance(expr, ir.TensorLoad):
        if isinstance(axes, Axes) and (flat := axes.flat(expr.source, expr.indices)) is not None:
            return load(expr.source, flat)
        return tirx.BufferLoad(expr.source, [substituted(index, axes) for index in expr.indices])
    if isinstance(expr, BINARY):
        return type(expr)(*alike(substituted(expr.a, axes), substituted(expr.b, axes)))
    if isinstance(expr, tirx.Cast):
        return tirx.Cast(dtype_of(expr), substituted(expr.value, axes))
    if isinstance(expr, tirx.Not):
        return tirx.Not(substituted(expr.a, axes))
    if isinstance(expr, tirx.Select):
        condition, yes, no = (substituted(e, axes) for e in (expr.condition, expr.true_value, expr.false_value))
        return tirx.Select(condition, *alike(yes, no))
    if isinstance(expr, ir.Call):
        args = [substituted(arg, axes) for arg in expr.args]
        return ir.Call(expr.op, args, expr.attrs, ret_ty=dtype_of(expr))
    return expr


def alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as int64 where one of two integers is."""
    left, right = dtype_of(a), dtype_of(b)
    if left == right or "int64" not in (left, right) or not (left.startswith("int") and right.startswith("int")):
        return a, b
    return tuple(_as_int64(x) for x in (a, b))  # type: ignore[return-value]


def _as_int64(value: Any) -> Any:
    return const(int(value)) if isinstance(value, tirx.IntImm) else value.astype("int64")


def dtype_of(expr: Any) -> str:
    return str(expr.ty.dtype) if hasattr(expr.ty, "dtype") else str(expr.ty)


def loads_in(expr: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return bool(found)


def is_global(buffer: Any) -> bool:
    return str(buffer.scope()) in ("global", "")
