"""One stage that computes something else for every value of a few small axes: chosen when those loops are unrolled.

TVM's simplifier unrolls such a stage too, but looks into every choice of every copy, again in every pass: a second and
more for the 16 blocks of two levels of Strassen's algorithm, and milliseconds where the choices are folded here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import PrimFunc

from subtune.tir.substitute import substitute
from subtune.tir.walk import found, with_body


def choose(axes: Sequence[Any], values: Sequence[tuple[tuple[int, ...], Any]]) -> Any:
    """The value whose position is that of `axes`; the last one elsewhere."""
    *others, (_, result) = values
    for position, value in reversed(others):
        result = tirx.Select(tirx.all(*(axis == i for axis, i in zip(axes, position, strict=True))), value, result)
    return result


def fold_choices(func: PrimFunc, names: Sequence[str]) -> PrimFunc:
    """`func`, scheduled, with the unrolled loops round the blocks `names` unrolled and every choice in them made."""
    return func.with_body(_fold(func.body, names))


def _fold(stmt: tirx.Stmt, names: Sequence[str]) -> Any:
    if isinstance(stmt, SBlockRealize):
        block = stmt.block
        if block.name_hint in names:
            return _decided(stmt)
        return _with_body(stmt, _fold(block.body, names))
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_fold(s, names) for s in stmt.seq])
    if not isinstance(stmt, tirx.For):
        return stmt
    if stmt.kind == tirx.ForKind.UNROLLED and any(b.name_hint in names for b in found(stmt, SBlock)):
        copies = [
            _fold(substitute(stmt.body, {stmt.loop_var: tirx.const(i, str(stmt.extent.ty))}), names)
            for i in range(int(stmt.extent))
        ]
        return tirx.SeqStmt(copies)
    return with_body(stmt, _fold(stmt.body, names))


def _decided(realize: Any) -> Any:
    """The block with the choices that its constant axes make."""
    block = realize.block
    known = {
        axis.var: value
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True)
        if isinstance(value, tirx.IntImm)
    }
    at = {var: int(value) for var, value in known.items()}

    def decide(expr: Any) -> Any:
        while isinstance(expr, tirx.Select) and (holds := _truth(expr.condition, at)) is not None:
            expr = expr.true_value if holds else expr.false_value
        return expr

    body = tirx.BufferStore(block.body.buffer, substitute(decide(block.body.value), known), list(block.body.indices))
    return _with_body(realize, body)


def _with_body(realize: Any, body: Any) -> SBlockRealize:
    block = realize.block
    new_block = SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, block.init, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip
    return SBlockRealize(realize.iter_values, realize.predicate, new_block)


def _truth(condition: Any, at: dict[Any, int]) -> bool | None:
    """Of a conjunction of `axis == constant`; None where an axis has no constant value."""
    if isinstance(condition, tirx.And):
        sides = [_truth(side, at) for side in (condition.a, condition.b)]
        return None if None in sides else all(sides)
    assert isinstance(condition, tirx.EQ), condition
    return at[condition.a] == int(condition.b) if condition.a in at else None
