"""What is read off expressions: loads, variables, conditions; and what takes a load's place."""

from __future__ import annotations

import pytest
from tvm import tirx

from subtune.tir.expressions import (
    conjuncts,
    is_conditional,
    is_load_of,
    is_same,
    loads,
    replace_loads,
    variables,
)

X, Y = (tirx.Var(name, "int64") for name in "xy")
A, B = (tirx.decl_buffer((8, 8), "float32", name) for name in "ab")
A_XY, B_YX = tirx.BufferLoad(A, [X, Y]), tirx.BufferLoad(B, [Y, X])
TWO = tirx.const(2.0, "float32")


def test_loads_are_found_inside_of_everything() -> None:
    found = loads(tirx.exp(A_XY) + B_YX * TWO)
    assert [load.source.name for load in found] == ["a", "b"]
    assert loads(TWO) == []


def test_variables_of_one_expression_or_several() -> None:
    assert variables(X + 1) == {X}
    assert variables([X + 1, Y]) == {X, Y}
    assert variables(A_XY) == {A, X, Y}, "in this TVM a buffer is a variable"


def test_sameness_is_that_of_structure_over_the_same_variables() -> None:
    assert is_same(X + Y, X + Y)
    assert not is_same(X + Y, Y + X)
    assert not is_same(X, Y)
    assert is_same([X, Y], [X, Y])


def test_conjuncts_are_flat() -> None:
    first, second, third = X < 3, Y < 4, X < Y
    parts = conjuncts(tirx.And(tirx.And(first, second), third))
    assert all(is_same(part, one) for part, one in zip(parts, (first, second, third), strict=True))
    either = tirx.Or(first, second)
    assert conjuncts(either) == [either]


@pytest.mark.parametrize(
    ("expr", "answer"),
    [(tirx.if_then_else(X < 3, A_XY, TWO), True), (tirx.exp(A_XY), False), (tirx.Select(X < 3, A_XY, TWO), False)],
    ids=["if_then_else", "exp", "select"],
)
def test_only_what_is_not_computed_at_all_is_conditional(expr: object, answer: bool) -> None:
    assert is_conditional(expr) is answer


def test_loads_of_one_buffer_are_replaced() -> None:
    assert is_load_of(A_XY, A)
    assert not is_load_of(A_XY, B)
    assert is_same(replace_loads(A_XY * B_YX + A_XY, A, TWO), TWO * B_YX + TWO)
