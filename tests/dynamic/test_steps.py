"""Symbols that are declared in steps: where sizes are no polynomials of any value, they are of multiples."""

from __future__ import annotations

import pytest

from subtune.core.domain import Symbol
from subtune.dynamic.declare import domain_of
from subtune.dynamic.fit import Fitter
from subtune.dynamic.points import sample_points

STEPS = {"height": 32, "width": 8}
DECLARED = {"batch": "1..4", "height": "32..256/32", "width": "8..64/8"}


@pytest.mark.parametrize(("values", "step"), [((64, 96, 256), 32), ((1, 2), 1), ((7,), 7), ((0, 12, 18), 6), ((0,), 1)])
def test_the_step_of_a_symbol(values, step):
    assert Symbol.uniform("height", values).step == step


def test_points_are_odd_and_even_multiples():
    points = sample_points(domain_of(DECLARED, tuple(DECLARED)), (), STEPS)
    for name, step in STEPS.items():
        counts = [point[name] / step for point in points]
        assert all(count == int(count) and count > 1 for count in counts)
        assert {count % 2 for count in counts} == {0, 1}
        assert len(set(counts)) == len(points)
    assert all(len({point["batch"], point["height"] // 32, point["width"] // 8}) == 3 for point in points)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (lambda height, width: height // 2, "16*floor(height/32)"),
        (lambda height, width: height // 4 * (width // 8) * 3, "24*floor(height/32)*floor(width/8)"),
        (
            lambda height, width: (height // 2 + 2) * (width // 2 + 2),
            "64*floor(height/32)*floor(width/8) + 32*floor(height/32) + 8*floor(width/8) + 4",
        ),
        (lambda height, width: height // 64, "floor(height/64)"),
        (lambda height, width: -(-height // 64), "ceil(height/64)"),
    ],
)
def test_parts_of_multiples(value, found):
    domain = domain_of({name: DECLARED[name] for name in STEPS}, tuple(STEPS))
    points = sample_points(domain, (), STEPS)
    fitted = Fitter(points, (64,), (), STEPS).fit([value(**point) for point in points])
    assert str(fitted) == found
    for height in (32, 64, 224, 256):
        assert fitted.at({"height": height, "width": 40}) == value(height, 40)
    assert Fitter(points, ()).fit([value(**point) for point in points]) is None


@pytest.mark.parametrize("value", [lambda a, b: (a + 2) * (3 * b + 1), lambda a, b: 5 * a * (a + 1) * (b + 7)])
def test_products_of_two_sums(value):
    points = [{"a": a, "b": b} for a, b in ((5, 7), (7, 13), (11, 5), (13, 11), (17, 3), (19, 23))]
    found = Fitter(points, ()).fit([value(**point) for point in points])
    assert found is not None
    assert found.at({"a": 100, "b": 39}) == value(100, 39)


def test_four_other_terms_are_too_many():
    points = [{"a": a, "b": b} for a, b in ((5, 7), (7, 13), (11, 5), (13, 11), (17, 3), (19, 23))]
    assert Fitter(points, ()).fit([p["a"] * p["b"] + p["a"] + p["b"] + 2 for p in points]) is None
    assert Fitter(points, ()).fit([p["a"] ** 3 + p["a"] + p["b"] + 2 for p in points]) is None
