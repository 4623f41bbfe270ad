"""Expressions of TIR: what they read, which variables they hold, whether two are one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, te, tirx


def loads(expr: Any) -> list[Any]:
    """Every buffer load in `expr`, in post order."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return found


def variables(exprs: Any) -> set[Any]:
    """The variables that occur in an expression or a sequence of them."""
    found: set[Any] = set()
    for expr in exprs if isinstance(exprs, list | tuple | tvm_ffi.Array) else [exprs]:
        tvm_ffi.structural_walk(expr, (ir.Var, found.add), order="post")
    return found


def at_most(index: Any, last: int) -> Any:
    """`min(index, last)` of 64 bits that stays one where no index is above: a kernel is the same for any number.

    No pass of TVM simplifies `index ^ 0`, and what bounds it is unknown; LLVM knows better.
    """
    return tirx.min(tirx.bitwise_xor(index, tirx.const(0, "int64")), tirx.const(last, "int64"))


def is_same(x: Any, y: Any) -> bool:
    """Whether two expressions, or lists of them, are equal over the same variables."""
    return bool(tvm_ffi.structural_equal(x, y, map_free_vars=False))


def conjuncts(condition: Any) -> list[Any]:
    """The conditions of which `condition` wants all."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    return [condition]


def distinct(found: Sequence[Any]) -> list[Any]:
    """`found` without what is equal to one before."""
    return [expr for i, expr in enumerate(found) if not any(is_same(expr, known) for known in found[:i])]


def function_name(call: Any) -> str:
    """What is called, without its dialect: exp of tirx.exp; "" where it has no name."""
    return str(getattr(call.op, "name", "")).rpartition(".")[2]


def is_load_of(expr: Any, buffer: Any) -> bool:
    return isinstance(expr, ir.TensorLoad) and expr.source.same_as(buffer)


def is_conditional(expr: Any) -> bool:
    """Whether what `expr`, or a statement, computes depends on a condition."""
    return bool(choices(expr))


def choices(expr: Any) -> list[Any]:
    """The calls of `if_then_else` in `expr`, or in a statement."""
    found: list[Any] = []
    tvm_ffi.structural_walk(
        expr, (ir.Call, lambda call: found.append(call) if "if_then_else" in str(call.op) else None), order="post"
    )
    return found


def choice_of(expr: Any) -> tuple[Any, Any, Any] | None:
    """Condition, value where it holds, and value where not, of either way to write a choice."""
    if isinstance(expr, tirx.Select):
        return expr.condition, expr.true_value, expr.false_value
    if isinstance(expr, ir.Call) and str(getattr(expr.op, "name", "")).endswith("if_then_else"):
        return expr.args[0], expr.args[1], expr.args[2]
    return None


def is_zero_padding(choice: Any) -> bool:
    """Whether a call of `if_then_else` gives something read, casts or not, or else zero."""
    _, value, other = choice.args
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, ir.TensorLoad) and not any(map(loads, value.indices)) and number(other) == 0


def number(expr: Any) -> float:
    """A literal's value, casts or not; NaN of anything else."""
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, tirx.FloatImm | tirx.IntImm) else math.nan


def replace_loads(expr: Any, source: Any, by: Any) -> Any:
    return tvm_ffi.structural_map(expr, (ir.TensorLoad, lambda load: by if load.source.same_as(source) else load))


def lowest(dtype: str) -> Any:
    """What no value of `dtype` is below: minus infinity of floats (TVM's `min_value` is the least finite one)."""
    return tirx.const(float("-inf"), dtype) if "float" in dtype else tirx.min_value(dtype)


def maximum_over(value: Any, axes: Any) -> Any:
    """The maximum of `value` over reduce axes, begun at `lowest`."""
    return te.comm_reducer(lambda a, b: tirx.max(a, b), lowest, name="max")(value, axis=axes)


def minimum_over(value: Any, axes: Any) -> Any:
    """The minimum of `value` over reduce axes, begun at infinity or at the greatest whole number."""

    def highest(dtype: str) -> Any:
        return tirx.const(float("inf"), dtype) if "float" in dtype else tirx.max_value(dtype)

    return te.comm_reducer(lambda a, b: tirx.min(a, b), highest, name="min")(value, axis=axes)
