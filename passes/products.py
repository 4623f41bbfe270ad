"""Arithmetic on one tensor, read as algebra: exporters write the same formula in many orders of operations."""

from __future__ import annotations

from subtune.passes.exprs import Expr, dtype_of, op_name, scalar_of, shape_of
from subtune.passes.rewriter import Walk

_MAX_FACTORS = 8


def factors(walk: Walk, expr: Expr) -> tuple[float, list[Expr]]:
    """`expr` as (number, tensors) with `expr == number * product of tensors`, through multiplications and divisions
    by numbers. A tensor of the list is no such product itself."""
    number = 1.0
    tensors: list[Expr] = []
    todo: list[Expr] = [expr]
    while todo:
        current = todo.pop()
        value = scalar_of(current)
        if value is not None:
            number *= value
            continue
        found = walk.definition(current)
        name = op_name(found)
        if name == "relax.multiply" and len(tensors) + len(todo) < _MAX_FACTORS:
            todo.extend(found.args)
            continue
        divisor = scalar_of(found.args[1]) if name == "relax.divide" else None
        if divisor:
            number /= divisor
            todo.append(found.args[0])
            continue
        tensors.append(current)
    return number, tensors


def polynomial(walk: Walk, expr: Expr, x: Expr, max_degree: int = 3) -> dict[int, float] | None:
    """Degree -> coefficient of `expr` as a polynomial in the tensor `x`, or None if it is none up to `max_degree`."""
    if same(walk, expr, x):
        return {1: 1.0}
    value = scalar_of(expr)
    if value is not None:
        return {0: value}
    found = walk.definition(expr)
    name = op_name(found)
    if name not in _ARITHMETIC or shape_of(found) != shape_of(x):
        return None
    if name == "relax.square":
        inner = polynomial(walk, found.args[0], x, max_degree)
        return _product(inner, inner, max_degree)
    if name == "relax.power":
        base, exponent = polynomial(walk, found.args[0], x, max_degree), scalar_of(found.args[1])
        if base is None or exponent not in (2.0, 3.0):
            return None
        squared = _product(base, base, max_degree)
        return squared if exponent == 2.0 else _product(squared, base, max_degree)
    a = polynomial(walk, found.args[0], x, max_degree)
    b = polynomial(walk, found.args[1], x, max_degree)
    if a is None or b is None:
        return None
    if name == "relax.multiply":
        return _product(a, b, max_degree)
    if name == "relax.divide":
        return {d: c / b[0] for d, c in a.items()} if set(b) == {0} and b[0] else None
    sign = 1.0 if name == "relax.add" else -1.0
    return {d: a.get(d, 0.0) + sign * b.get(d, 0.0) for d in {*a, *b}}


_ARITHMETIC = frozenset(f"relax.{name}" for name in "add subtract multiply divide power square".split())


def _product(a: dict[int, float] | None, b: dict[int, float] | None, max_degree: int) -> dict[int, float] | None:
    if a is None or b is None or max(a) + max(b) > max_degree:
        return None
    result: dict[int, float] = {}
    for i, p in a.items():
        for j, q in b.items():
            result[i + j] = result.get(i + j, 0.0) + p * q
    return result


def same(walk: Walk, a: Expr, b: Expr) -> bool:
    """Whether two expressions are one variable, or the same operator on the same operands (exporters repeat some)."""
    if a.same_as(b):
        return True
    p, q = walk.definition(a), walk.definition(b)
    if not op_name(p) or op_name(p) != op_name(q) or len(p.args) != len(q.args):
        return False
    if str(p.attrs) != str(q.attrs):
        return False
    return all(_same_operand(m, n) for m, n in zip(p.args, q.args, strict=True))


def _same_operand(a: Expr, b: Expr) -> bool:
    return a.same_as(b) or (scalar_of(a) is not None and scalar_of(a) == scalar_of(b))


def close(walk: Walk, a: float | None, b: float, like: Expr) -> bool:
    """Whether an exporter's constant, in a formula of `like`'s type, is `b`, as far as the model's types can tell."""
    is_exact = dtype_of(like) in ("float32", "float64") and not walk.half
    return a is not None and abs(a - b) <= (1e-5 if is_exact else 4e-3) * abs(b)
