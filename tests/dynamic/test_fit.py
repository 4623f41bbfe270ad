"""Polynomials through values: what is found is the polynomial that the values are of, and goes through all of them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subtune.core.dims import Dim, Monomial, Quotient, parse
from subtune.dynamic.fit import Fitter

# A multiple of a divisor among them tells rounding up from rounding down.
POINTS = {
    1: [{"seq": value} for value in (67, 128, 197, 263)],
    2: [{"batch": a, "seq": b} for a, b in ((67, 71), (71, 128), (96, 89), (79, 101), (83, 67), (89, 131))],
}
OTHERS = {1: [{"seq": 3}, {"seq": 1024}], 2: [{"batch": 3, "seq": 1}, {"batch": 500, "seq": 77}]}
FITTERS = {count: Fitter(points, divisors=(2, 16)) for count, points in POINTS.items()}
MONOMIALS: dict[int, list[Monomial]] = {
    count: [m for n in range(4) for m in itertools.combinations_with_replacement(sorted(points[0]), n)]
    for count, points in POINTS.items()
}
factors = st.integers(-1000, 1000).filter(bool)


@st.composite
def polynomials(draw: st.DrawFn) -> tuple[int, Dim]:
    """How many symbols, and at most three terms in them."""
    symbols = draw(st.sampled_from(sorted(POINTS)))
    terms = st.dictionaries(st.sampled_from(MONOMIALS[symbols]), factors, min_size=1, max_size=3)
    return symbols, Dim.of(draw(terms))


@given(polynomials())
def test_a_polynomial_is_found(drawn):
    symbols, dim = drawn
    found = FITTERS[symbols].fit([dim.at(point) for point in POINTS[symbols]])
    assert found is not None
    assert len(found.terms) <= len(dim.terms)
    for point in (*POINTS[symbols], *OTHERS[symbols]):
        assert found.at(point) == dim.at(point), f"{dim} taken for {found}"


@given(factors, st.sampled_from([m for m in MONOMIALS[1] if len(m) < 3]), st.booleans(), st.integers(-50, 50))
def test_a_quotient_times_a_monomial_is_found(factor, monomial, is_up, constant):
    quotient = Quotient(Dim.symbol("seq"), 16, is_up).name
    dim = Dim.of({(quotient, *monomial): factor, (): constant})
    found = FITTERS[1].fit([dim.at(point) for point in POINTS[1]])
    assert found is not None
    for point in (*POINTS[1], *OTHERS[1]):
        assert found.at(point) == dim.at(point), f"{dim} taken for {found}"


@pytest.mark.parametrize("text", ["768*ceil(seq/16)", "batch*ceil(seq/16)", "5*batch*batch*floor(batch*seq/16)"])
def test_a_quotient_beside_two_symbols_is_found(text):
    dim = parse(text)
    found = FITTERS[2].fit([dim.at(point) for point in POINTS[2]])
    assert found is not None
    for point in (*POINTS[2], *OTHERS[2]):
        assert found.at(point) == dim.at(point), f"{dim} taken for {found}"


@settings(max_examples=50)
@given(st.lists(st.integers(-(2**40), 2**40), min_size=4, max_size=4))
def test_what_is_found_goes_through_all_values(values):
    found = FITTERS[1].fit(values)
    assert found is None or [found.at(point) for point in POINTS[1]] == values


@pytest.mark.parametrize(
    ("symbols", "values"),
    [
        (1, [2**i for i in range(4)]),
        (1, [value % 5 for value in (67, 128, 197, 263)]),
        (1, [min(value, 150) for value in (67, 128, 197, 263)]),
        (1, [value**4 for value in (67, 128, 197, 263)]),
        (1, [value * 3 // 4 for value in (67, 128, 197, 263)]),
        (1, [-1, 0, 7, 0]),
        (2, [max(point["batch"], point["seq"] - 7) for point in POINTS[2]]),
        (2, [point["batch"] ** point["seq"] for point in POINTS[2]]),
        (2, [2 * point["batch"] * point["seq"] + (i == 5) for i, point in enumerate(POINTS[2])]),
    ],
)
def test_none_is_found_of_other_values(symbols, values):
    assert FITTERS[symbols].fit(values) is None


@pytest.mark.parametrize("text", ["seq*seq*seq + seq*seq + seq + 1", "batch + seq + batch*seq + 2", "seq*seq*seq*seq"])
def test_none_is_found_of_more_terms_or_factors(text):
    symbols = 2 if "batch" in text else 1
    assert FITTERS[symbols].fit([parse(text).at(point) for point in POINTS[symbols]]) is None


@pytest.mark.parametrize(
    "text",
    ["ceil(3*seq/2)", "144*ceil(9*seq/4)", "ceil(27*seq/16)", "ceil(seq*seq/512)", "ceil(3*seq/32)", "ceil(49*seq/64)"],
)
def test_blocks_of_rows_are_found_by_odd_extents_alone(text):
    """`3*ceil(seq/2) - 1` is as right there, and wrong where rows are even."""
    points = [{"seq": value} for value in (509, 127, 139, 151, 163, 179, 197)]
    dim = parse(text)
    found = Fitter(points).fit([dim.at(point) for point in points])
    assert found is not None
    for seq in (1, 2, 3, 4, 6, 7, 64, 200, 509, 512):
        assert found.at({"seq": seq}) == dim.at({"seq": seq}), f"{dim} taken for {found} at {seq}"
