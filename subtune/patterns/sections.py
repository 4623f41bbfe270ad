"""Stretches of a row on which everything that is chosen by the position in the row is chosen alike.

    c[i, j] = a[i, j] if j < 23 else b[i, j - 23]           0 <= j < 243
    sections   0..23: a[i, j]      23..243: b[i, j - 23]

Concatenations are made of such, and paddings: in each of their sections, elements are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym.analyzer import Analyzer

from subtune.tir.blocks import extents_of
from subtune.tir.expressions import choice_of, variables
from subtune.tir.substitute import substitute

MOST = 64
"""Sections of an axis; more would be more code than they save time."""


@dataclass(frozen=True, slots=True)
class Section:
    """Elements `begin` to `end` - 1 of a row, which are all computed as `value`."""

    begin: int
    end: int
    value: Any


@dataclass(frozen=True, slots=True)
class Sectioned:
    """The axis of a block along which its elements are chosen, by its position, and the sections along it."""

    axis: int
    sections: tuple[Section, ...]


def sectioned(block: Any, is_last: bool) -> Sectioned | None:
    """The innermost axis with several sections; None where there is none, or one with too many.

    Args:
        is_last: of the last axis only.
    """
    extents = extents_of(block)
    store = block.body
    if not extents or not isinstance(store, tirx.BufferStore) or len(store.indices) != len(extents):
        return None
    for axis in reversed(range(len(extents))):
        var = block.iter_vars[axis].var
        if not store.indices[axis].same_as(var):
            return None
        found = sections_of(store.value, var, extents[axis])
        if len(found) != 1 or is_last:
            return Sectioned(axis, found) if len(found) > 1 else None
    return None


def sections_of(value: Any, axis: Any, extent: int) -> tuple[Section, ...]:
    """The sections of a row of `extent` elements, in order; () where there are more than `MOST`.

    Args:
        value: what is computed for each element: an expression of the variable `axis` and others.
    """
    done: list[Section] = []
    left = [(0, extent, value)]
    while left and len(done) + len(left) <= MOST:
        begin, end, rest = left.pop()
        decided = _decided(rest, axis, begin, end)
        at = _turn(decided, axis, begin, end)
        if at is None:
            done.append(Section(begin, end, decided))
        else:
            left += [(at, end, decided), (begin, at, decided)]
    return () if left else tuple(done)


def _decided(value: Any, axis: Any, begin: int, end: int) -> Any:
    """`value` with the choices made that are the same for the whole section."""
    analyzer = Analyzer()
    analyzer.bind(axis, ir.Range(tirx.const(begin, axis.ty.dtype), tirx.const(end, axis.ty.dtype)))

    def decide(expr: Any) -> Any:
        choice = choice_of(expr)
        if choice is None or axis not in variables(choice[0]):
            return expr
        condition, yes, no = choice
        if analyzer.can_prove(condition):
            return yes
        return no if analyzer.can_prove(tirx.Not(condition)) else expr

    def least(expr: Any) -> Any:
        if axis not in variables(expr):
            return expr
        first_is_less = expr.a <= expr.b if isinstance(expr, tirx.Min) else expr.a >= expr.b
        if analyzer.can_prove(first_is_less):
            return expr.a
        return expr.b if analyzer.can_prove(tirx.Not(first_is_less)) else expr

    return tvm_ffi.structural_map(
        value, [(tirx.Select, decide), (ir.Call, decide), (tirx.Min, least), (tirx.Max, least)]
    )


def _turn(value: Any, axis: Any, begin: int, end: int) -> int | None:
    """Where in a section a comparison of the position comes out otherwise than at its begin; None if none does."""
    compared: list[Any] = []
    see = [(kind, compared.append) for kind in (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Min, tirx.Max)]
    tvm_ffi.structural_walk(value, see)
    for node in compared:
        if variables(node) != {axis} or not str(node.a.ty.dtype).startswith("int"):
            continue
        truth = node.a <= node.b if isinstance(node, tirx.Min | tirx.Max) else node
        at = _first_other(truth, axis, begin, end)
        if at is not None:
            return at
    return None


def _first_other(condition: Any, axis: Any, begin: int, end: int) -> int | None:
    """By bisection: what is compared is monotonous once the choices inside it are made, and they are made first."""
    analyzer = Analyzer()

    def holds(at: int) -> bool:
        return bool(analyzer.can_prove(substitute(condition, {axis: tirx.const(at, axis.ty.dtype)})))

    first = holds(begin)
    if holds(end - 1) == first:
        return None
    low, high = begin, end - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) == first else (low, middle)
    return high
