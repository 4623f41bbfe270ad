"""The search for polynomials: which of several it takes, and that numbers of any size are exact."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subtune.core.dims import Dim, parse
from subtune.dynamic.fit import Fitter

_ONE = [{"a": value} for value in (67, 71, 73, 79)]
_TWO = [{"a": a, "b": b} for a, b in ((67, 71), (71, 79), (73, 89), (79, 101), (83, 67), (89, 73))]
_MONOMIALS = {points: [m for n in range(4) for m in itertools.combinations_with_replacement(names, n)]
              for points, names in ((1, "a"), (2, "ab"))}  # fmt: skip


def _values(text: str, points: list[dict[str, int]]) -> list[int]:
    return [parse(text).at(point) for point in points]


@pytest.mark.parametrize(
    "text",
    ["3*a", "a*a*b - 64*b", "2*a*b + 5*a - 1", "768*ceil(a/16) + b", "ceil(a*b/3)*a", f"{2**40}*a*b*b + {2**70}"],
)
def test_finds_what_the_values_are_of(text):
    assert Fitter(_TWO).fit(_values(text, _TWO)) == parse(text)


def test_what_differs_by_whole_words_of_64_bits_is_no_polynomial():
    values = _values("3*a", _ONE)
    assert Fitter(_ONE).fit([values[0] + 2**64, *values[1:]]) is None
    assert Fitter(_ONE).fit([*values[:3], values[3] - 2**65]) is None


def test_coefficients_are_whole():
    points = [{"a": value} for value in (4, 8, 16, 64)]
    assert Fitter(points, divisors=[3]).fit([point["a"] * 3 // 4 for point in points]) is None


def test_a_quotient_that_is_0_at_first_is_no_term_by_itself():
    points = [{"a": 3}, {"a": 16}]
    assert Fitter(points, divisors=[16]).fit([0, 5]) is None
    assert str(Fitter(points[::-1], divisors=[16]).fit([5, 0])) == "5*floor(a/16)"


def test_of_a_quotient_rounded_up_or_down_the_one_rounded_up_is_taken():
    assert str(Fitter(_ONE, divisors=[70]).fit([0, 2, 2, 2])) == "2*ceil(a/70) - 2"


def test_of_divisors_that_say_the_same_the_first_is_named():
    points = [*_ONE[:3], {"a": 130}]
    values = _values("ceil(a/60)", points)
    assert str(Fitter(points, divisors=[40, 61, 60]).fit(values)) == "ceil(a/61)"


@pytest.mark.parametrize("count", [1, 2, 3])
def test_there_is_a_point_more_than_terms(count):
    """With as many points as terms, any values would do."""
    found = Fitter(_ONE[:count]).fit([11, 5, 4][:count])
    assert found == (Dim.number(11) if count == 1 else None)


_factor = st.integers(-3, 3).filter(bool)


@st.composite
def _sums(draw: st.DrawFn) -> tuple[int, list[int]]:
    """(symbols, values): of a polynomial, perhaps divided, so that its coefficients are broken, perhaps disturbed."""
    symbols = draw(st.integers(1, 2))
    points = _ONE if symbols == 1 else _TWO
    terms = draw(st.dictionaries(st.sampled_from(_MONOMIALS[symbols]), _factor, min_size=1, max_size=3))
    values = [Dim.of(terms).at(point) for point in points]
    if draw(st.booleans()):
        values[draw(st.integers(0, len(points) - 1))] += draw(_factor)
    return symbols, values


@settings(max_examples=60)
@given(_sums())
def test_finds_the_first_polynomial_that_a_search_in_fractions_finds(case):
    symbols, values = case
    points = _ONE if symbols == 1 else _TWO
    assert Fitter(points, divisors=[]).fit(values) == _slowly(points, _MONOMIALS[symbols], values)


def _slowly(points: list[dict[str, int]], monomials: list[tuple[str, ...]], values: list[int]) -> Dim | None:
    if len(set(values)) == 1:
        return Dim.number(values[0])
    for terms in range(1, 4):
        for chosen in sorted(itertools.combinations(monomials, terms), key=lambda some: sum(map(len, some))):
            rows = [[Fraction(prod(point[n] for n in m)) for m in chosen] for point in points]
            found = _eliminated([[*row, Fraction(value)] for row, value in zip(rows, values, strict=True)], terms)
            if found is not None and all(x and x.denominator == 1 for x in found):
                return Dim.of({m: int(x) for m, x in zip(chosen, found, strict=True)})
    return None


def _eliminated(rows: list[list[Fraction]], width: int) -> list[Fraction] | None:
    for at in range(width):
        pivot = next((i for i in range(at, len(rows)) if rows[i][at]), None)
        if pivot is None:
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [x / rows[at][at] for x in rows[at]]
        for i, row in enumerate(rows):
            if i != at:
                rows[i] = [x - row[at] * y for x, y in zip(row, rows[at], strict=True)]
    return None if any(row[width] for row in rows[width:]) else [rows[i][width] for i in range(width)]
