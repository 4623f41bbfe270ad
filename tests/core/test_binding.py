"""Symbols' values from shapes: the instance that shapes come from is found again; what fits none is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune.core.binding import Binder, unbound
from subtune.core.bounds import bounds
from subtune.core.dims import Dim, parse
from subtune.core.domain import Domain, Symbol
from subtune.core.errors import InputError
from subtune.core.tensor_spec import TensorSpec

_NAMES = ("batch", "past", "seq")
_DOMAIN = Domain(tuple(Symbol.uniform(name, tuple(range(1, 65))) for name in _NAMES))
_VALUES = st.fixed_dictionaries({name: st.integers(1, 64) for name in _NAMES})
_AXES = st.lists(
    st.sampled_from(
        ["batch", "past", "seq", "past + seq", "2*seq", "batch*seq", "batch*past + 3", "seq*seq", "past - seq + 64", 5]
    ),
    max_size=4,
)
_INPUTS = st.lists(_AXES, min_size=1, max_size=3).map(
    lambda shapes: tuple(TensorSpec(f"in{i}", tuple(shape), "float32") for i, shape in enumerate(shapes))
)


def model(*shapes: tuple[int | str, ...], domain: Domain = _DOMAIN) -> Binder:
    return Binder([TensorSpec(name, shape, "int64") for name, shape in zip("abc", shapes, strict=False)], domain)


@given(_INPUTS, _VALUES)
def test_the_values_that_shapes_were_made_of_are_found(inputs: tuple[TensorSpec, ...], values: dict[str, int]) -> None:
    untold = unbound(inputs, _DOMAIN)
    domain = Domain(tuple(symbol for symbol in _DOMAIN.symbols if symbol.name not in untold))
    if any(set(spec.symbols) & set(untold) for spec in inputs):
        return
    shapes = [spec.at(values).sizes for spec in inputs]
    assert Binder(inputs, domain).values(shapes) == {name: values[name] for name in domain.names}


@given(_INPUTS, _VALUES, st.data())
def test_shapes_are_those_of_the_values_or_refused(
    inputs: tuple[TensorSpec, ...], values: dict[str, int], data: st.DataObject
) -> None:
    if unbound(inputs, _DOMAIN):
        return
    shapes = [list(spec.at(values).sizes) for spec in inputs]
    shape = data.draw(st.sampled_from([shape for shape in shapes if shape]))
    shape[data.draw(st.integers(0, len(shape) - 1))] += data.draw(st.integers(-3, 3))
    given_shapes = [tuple(shape) for shape in shapes]
    try:
        found = Binder(inputs, _DOMAIN).values(given_shapes)
    except InputError:
        assert given_shapes != [spec.at(values).sizes for spec in inputs]
    else:
        assert _DOMAIN.complaint(found) == ""
        assert [spec.at(found).sizes for spec in inputs] == given_shapes


@pytest.mark.parametrize(
    ("shapes", "untold"),
    [
        ([("batch", "past + seq"), ("seq",)], ()),
        ([("batch", "past + seq")], ("past", "seq")),
        ([("batch", "seq*seq"), ("past",)], ("seq",)),
        ([("batch*seq", "batch*past"), ("2*past + 1",)], ()),
        ([(4,)], ("batch", "past", "seq")),
    ],
)
def test_what_no_shape_tells_is_known_beforehand(shapes: list[tuple[int | str, ...]], untold: tuple[str, ...]) -> None:
    assert unbound([TensorSpec("x", shape, "int64") for shape in shapes], _DOMAIN) == untold


def test_a_symbol_alone_tells_more_than_an_expression() -> None:
    """`seq` is what the last input says, whatever comes before it: the message is about the other one."""
    binder = model(("batch", "2*seq", "past"), ("seq",))
    with pytest.raises(
        InputError, match=r"^2\*seq is 14 by axis 0 of b and 15 by axis 1 of a; give arrays that agree$"
    ):
        binder.values([(1, 15, 1), (7,)])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 7), (1, 8)], "seq is 7 by axis 1 of a and 8 by axis 1 of b; give arrays that agree"),
        ([(1, 70), (1, 70)], "axis 1 of input a is 70: seq is 70, and the model was compiled for seq=1..64"),
        ([(7,), (1, 7)], r"input a has shape \(7,\), the model takes a: int64\[batch, seq\] of batch=1..64 seq=1..64"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(shapes: list[tuple[int, ...]], message: str) -> None:
    domain = Domain((_DOMAIN.symbols[0], _DOMAIN.symbols[2]))
    with pytest.raises(InputError, match=f"^{message}$"):
        model(("batch", "seq"), ("batch", "seq"), domain=domain).values(shapes)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(4,), (2, 15)], r"axis 1 of input b is 15, and no seq makes batch\*seq that where batch is 2"),
        ([(4,), (2, 200)], "axis 1 of input b is 200: seq is 100, and the model was compiled for seq=1..64"),
        ([(5,), (2, 14)], r"input a has shape \(5,\), the model takes a: int64\[4\] of batch=1..64 seq=1..64"),
    ],
)
def test_expressions_that_do_not_come_out(shapes: list[tuple[int, ...]], message: str) -> None:
    domain = Domain((_DOMAIN.symbols[0], _DOMAIN.symbols[2]))
    with pytest.raises(InputError, match=f"^{message}$"):
        model((4,), ("batch", "batch*seq"), domain=domain).values(shapes)


def test_values_come_in_the_order_of_the_domain() -> None:
    domain = Domain((_DOMAIN.symbols[2], _DOMAIN.symbols[0]))
    assert list(model(("batch", "seq"), domain=domain).values([(2, 3)]).items()) == [("seq", 3), ("batch", 2)]


_SMALL = Domain(
    tuple(Symbol.uniform(name, values) for name, values in zip(_NAMES, [(1, 2, 5), (2, 3), (1, 7)], strict=True))
)
_DIMS = st.dictionaries(
    st.lists(st.sampled_from(_NAMES), max_size=2).map(lambda names: tuple(sorted(names))),
    st.integers(-9, 9),
    max_size=4,
).map(Dim.of)


@given(_DIMS)
def test_bounds_hold_and_are_reached_where_no_power_is(dim: Dim) -> None:
    found = [dim.at(values) for values, _ in _SMALL.instances()]
    low, high = bounds(dim, _SMALL)
    assert low <= min(found)
    assert high >= max(found)
    if all(len(set(monomial)) == len(monomial) for monomial, _ in dim.terms):
        assert (low, high) == (min(found), max(found))


def test_specifications_have_one_way_of_writing() -> None:
    spec = TensorSpec("x", ("seq+past", 3, "2*(a - 1)"), "float32")
    assert spec.shape == ("past + seq", 3, "2*a - 2")
    assert spec.symbols == ("a", "past", "seq")
    assert not spec.is_static
    assert spec.at({"seq": 1, "past": 2, "a": 3}) == TensorSpec("x", (3, 3, 4), "float32")
    assert spec.dims[0] == parse("past + seq")
    with pytest.raises(AssertionError, match=r"x: float32\[past \+ seq, 3, 2\*a - 2\] has no shape in numbers"):
        spec.nbytes  # noqa: B018
    with pytest.raises(ValueError, match="negative dimension"):
        spec.at({"seq": 1, "past": 2, "a": 0})
    for wrong, why in [
        ("7", "has no symbol"),
        ("a - a", "has no symbol"),
        ("a/2", "no sum of products"),
        ("", "no sum"),
    ]:
        with pytest.raises(ValueError, match=why):
            TensorSpec("x", (wrong,), "float32")
