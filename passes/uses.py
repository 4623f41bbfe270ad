"""How often a Relax function mentions its variables, and what is left without the bindings that nobody does."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from subtune.passes.exprs import Expr, is_value


def count_uses(func: relax.Function) -> dict[Any, int]:
    """Variable -> how often the bindings and the result of `func` mention it."""
    uses: dict[Any, int] = {}
    for block in func.body.blocks:
        for binding in block.bindings:
            _count(binding.value, uses)
    _count(func.body.body, uses)
    return uses


def _count(expr: Expr, uses: dict[Any, int]) -> None:
    if isinstance(expr, tvm.ir.Var):
        uses[expr] = uses.get(expr, 0) + 1
    elif isinstance(expr, tvm.ir.Tuple):
        for part in expr.fields[:]:
            _count(part, uses)
    elif isinstance(expr, tvm.ir.TupleGetItem):
        _count(expr.tuple_value, uses)
    elif isinstance(expr, tvm.ir.Call) and is_value(expr):
        for part in expr.args[:]:
            _count(part, uses)
    elif isinstance(expr, relax.If | relax.Function | relax.SeqExpr):
        for var in relax.analysis.free_vars(expr):
            uses[var] = uses.get(var, 0) + 2  # a branch may use it more than once


def drop_dead(blocks: list[tuple[Any, list[Any]]], body: Expr) -> tuple[list[tuple[Any, list[Any]]], int]:
    """The blocks without bindings nobody uses, and how many those were. Only dataflow blocks are pure."""
    live: dict[Any, int] = {}
    _count(body, live)
    kept, removed = [], 0
    for make, bindings in reversed(blocks):
        survivors = []
        for binding in reversed(bindings):
            is_dead = make is relax.DataflowBlock and binding.var not in live
            if is_dead and not isinstance(binding, relax.MatchCast):
                removed += 1
                continue
            _count(binding.value, live)
            survivors.append(binding)
        kept.append((make, survivors[::-1]))
    return kept[::-1], removed
