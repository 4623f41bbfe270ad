"""Symbolic dimensions: written, read, computed with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune.core.dims import Dim, parse
from subtune.core.domain import Domain, Symbol

_NAMES = ("batch", "past", "seq")
_DIMS = st.dictionaries(
    st.lists(st.sampled_from(_NAMES), max_size=2).map(lambda names: tuple(sorted(names))),
    st.integers(-9, 9),
    max_size=4,
).map(Dim.of)
_VALUES = st.fixed_dictionaries({name: st.integers(1, 600) for name in _NAMES})


@given(_DIMS)
def test_what_is_written_is_read_back(dim: Dim) -> None:
    assert parse(str(dim)) == dim


@given(_DIMS, _DIMS, _VALUES)
def test_sums_and_products_have_the_values_of_sums_and_products(one: Dim, other: Dim, values: dict[str, int]) -> None:
    assert (one + other).at(values) == one.at(values) + other.at(values)
    assert (one * other).at(values) == one.at(values) * other.at(values)


@pytest.mark.parametrize("text", ["", "a*-b", "1..2", "a b", "(a", "a)", "*", "a/2", "2 3"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no sum of products"):
        parse(text)


def test_brackets_and_numbers() -> None:
    assert str(parse("2*(a + b)*c - 3")) == "2*a*c + 2*b*c - 3"
    assert parse("7").constant == 7
    assert parse("a - a").constant == 0
    assert parse("a").constant is None


def test_a_domain_knows_its_instances() -> None:
    domain = Domain((Symbol.uniform("batch", (1, 4)), Symbol("seq", (16, 32), (0.75, 0.25))))
    assert domain.size == 4
    assert domain.greatest == {"batch": 4, "seq": 32}
    assert {tuple(values.values()): weight for values, weight in domain.instances()}[1, 16] == 0.375
    assert domain.complaint({"batch": 4, "seq": 16}) == ""
    assert domain.complaint({"batch": 2, "seq": 16}) == "batch is 2, and the model was compiled for batch=1,4"
    assert str(Domain((Symbol.uniform("seq", tuple(range(1, 513))),))) == "seq=1..512"
