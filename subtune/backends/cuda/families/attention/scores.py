"""What is done to a score before the softmax: a factor, a mask by position, or any expression.

    f(score) = factor * score      where the mask by position shows key n to row m, else minus infinity
    f(score) = value(score, o, m, n)                                               anything else: an added mask, a bias

A mask by position is n <= m + offset: causal attention, whichever way a model writes it. Blocks of keys that no row of
a tile sees are skipped, which is what makes causal attention twice as fast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.sym.pattern import detect_linear_equation

from subtune.patterns.chain import ChainExpressions
from subtune.tir.expressions import choice_of, number, variables

_HIDDEN = -3e4
"""What a mask writes or adds is taken for minus infinity from here on: halves have nothing much below."""


@dataclass(frozen=True, slots=True)
class Scores:
    """`factor`: of the score; 0 where `value` says what it becomes. `offset`: None where every row sees every key."""

    factor: float
    value: Any
    offset: int | None


def scores_of(form: ChainExpressions) -> Scores:
    """How the softmax's input comes from the scores."""
    value, offset = _masked(form, form.f)
    factor = _factor(value, form.score)
    return Scores(factor if factor > 0 else 0.0, value, offset)


def _masked(form: ChainExpressions, value: Any) -> tuple[Any, int | None]:
    """`value` without a mask by position, and the mask's offset."""
    choice = choice_of(value)
    if choice is not None:
        condition, yes, no = _plain(choice[0]), *choice[1:]
        for seen, shown, hidden in ((condition, yes, no), (_negated(condition), no, yes)):
            offset = _offset(form, seen)
            if offset is not None and number(hidden) <= _HIDDEN:
                return shown, offset
    if isinstance(value, tirx.Add):
        for side, other in ((value.a, value.b), (value.b, value.a)):
            choice = choice_of(other)
            if choice is None:
                continue
            condition, yes, no = _plain(choice[0]), *choice[1:]
            for seen, shown, hidden in ((condition, yes, no), (_negated(condition), no, yes)):
                offset = _offset(form, seen)
                if offset is not None and number(shown) == 0 and number(hidden) <= _HIDDEN:
                    return side, offset
    return value, None


def _plain(condition: Any) -> Any:
    """A condition without the numbers that it went through."""
    while isinstance(condition, tirx.Cast) and str(condition.ty.dtype) == "bool":
        choice = choice_of(condition.value)
        if choice is None or number(choice[1]) != 1 or number(choice[2]) != 0:
            break
        condition = choice[0]
    return condition


def _negated(condition: Any) -> Any:
    turned = {tirx.LE: tirx.GT, tirx.LT: tirx.GE, tirx.GE: tirx.LT, tirx.GT: tirx.LE}.get(type(condition))
    if turned is not None:
        return turned(condition.a, condition.b)
    return condition.a if isinstance(condition, tirx.Not) else tirx.Not(condition)


def _offset(form: ChainExpressions, condition: Any) -> int | None:
    """d where the condition is n <= m + d, and every row sees a key."""
    if isinstance(condition, tirx.LE | tirx.LT):
        low, high, strict = condition.a, condition.b, isinstance(condition, tirx.LT)
    elif isinstance(condition, tirx.GE | tirx.GT):
        low, high, strict = condition.b, condition.a, isinstance(condition, tirx.GT)
    else:
        return None
    if variables([low, high]) - {form.m, form.n}:
        return None
    found = [Analyzer().simplify(c) for c in detect_linear_equation(high - low, [form.m, form.n])]
    if len(found) != 3 or not all(isinstance(c, tirx.IntImm) for c in found):
        return None
    rows, keys, apart = (int(c.value) for c in found)
    offset = apart - int(strict)
    return offset if (rows, keys) == (1, -1) and offset >= 0 else None


def _factor(value: Any, score: Any) -> float:
    """c where `value` is c times the score, else 0."""
    if isinstance(value, ir.Var) and value.same_as(score):
        return 1.0
    if isinstance(value, tirx.Mul):
        for side, other in ((value.a, value.b), (value.b, value.a)):
            if not math.isnan(number(other)):
                return _factor(side, score) * number(other)
    if isinstance(value, tirx.Div) and number(value.b) not in (0.0, math.inf, -math.inf):
        by = number(value.b)
        return 0.0 if math.isnan(by) else _factor(value.a, score) / by
    return 0.0
