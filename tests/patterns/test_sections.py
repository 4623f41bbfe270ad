"""Sections of rows: where choices by the position are made, and that they compute the same."""

from __future__ import annotations

import pytest
from tvm import tirx
from tvm.sym.analyzer import Analyzer

from subtune.patterns.sections import MOST, sections_of
from subtune.tir.substitute import substitute

J = tirx.Var("j", "int64")


def concatenated(first: int, second: int) -> tirx.PrimExpr:
    return tirx.if_then_else(first + second <= J, J - (first + second), tirx.if_then_else(first <= J, J * 10, J * 100))


def reflected(before: int, extent: int) -> tirx.PrimExpr:
    inner = tirx.Select(before <= J, J - before, before - J)
    return tirx.Select(inner < extent, inner, 2 * extent - 2 - inner)


def clamped(before: int, extent: int) -> tirx.PrimExpr:
    return tirx.max(tirx.min(J - before, tirx.const(extent - 1, "int64")), tirx.const(0, "int64"))


@pytest.mark.parametrize(
    ("value", "extent", "expected"),
    [
        (concatenated(1, 23), 60, [0, 1, 24, 60]),
        (reflected(2, 41), 46, [0, 2, 43, 46]),
        (clamped(2, 41), 46, None),
        (J * 3, 17, [0, 17]),
    ],
    ids=["concatenation", "reflection", "clamping", "one section"],
)
def test_rows_are_divided_where_a_choice_turns(value: tirx.PrimExpr, extent: int, expected: list[int] | None) -> None:
    sections = sections_of(value, J, extent)
    bounds = [section.begin for section in sections] + [sections[-1].end]
    assert expected is None or bounds == expected
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (0, extent)
    for section in sections:
        for position in range(section.begin, section.end):
            at = {J: tirx.const(position, "int64")}
            got, wanted = (Analyzer().simplify(substitute(expr, at)) for expr in (section.value, value))
            assert int(got) == int(wanted), position


def test_choices_by_something_else_stay() -> None:
    i = tirx.Var("i", "int64")
    (section,) = sections_of(tirx.if_then_else(i < 3, J, J + 1), J, 8)
    assert (section.begin, section.end) == (0, 8)


def test_many_sections_are_none() -> None:
    value: tirx.PrimExpr = J
    for at in range(1, MOST + 2):
        value = tirx.if_then_else(at <= J, J * at, value)
    assert sections_of(value, J, MOST + 3) == ()
