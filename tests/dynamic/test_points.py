"""Instances at which a model is compared with itself: numbers of tiles of a sum are nothing else there."""

from __future__ import annotations

import itertools

import pytest

from subtune.core.dims import parse
from subtune.core.tensor_spec import TensorSpec
from subtune.dynamic.declare import domain_of
from subtune.dynamic.points import sample_points, sums_of


@pytest.mark.parametrize(
    "declared",
    [
        {"batch": "1..2", "past": "0..9", "seq": "1..5"},
        {"past": "0..20", "seq": "1..4"},
        {"past": "0..128", "seq": "1..2"},
        {"past": "0..512", "seq": "1..64"},
        {"batch": "1..4", "past": "0..40", "seq": "1..128"},
    ],
)
def test_tiles_of_a_sum_are_told_from_those_of_all_else(declared):
    names = tuple(declared)
    points = sample_points(domain_of(declared, names), [parse("past + seq")])
    for divisor in (4, 32):
        of_sum = [-(-(point["past"] + point["seq"]) // divisor) for point in points]
        assert len(set(of_sum)) > 1
        for name in names:
            assert of_sum != [-(-point[name] // divisor) for point in points]
        for a, b in itertools.combinations(names, 2):
            assert of_sum != [-(-point[a] * point[b] // divisor) for point in points]


@pytest.mark.parametrize("sums", [[], [parse("past + seq")]])
def test_values_differ_along_and_across(sums):
    points = sample_points(domain_of({"past": "0..9", "seq": "1..5"}, ("past", "seq")), sums)
    assert all(len(set(point.values())) == 2 for point in points)
    assert all(len({point[name] for point in points}) == len(points) for name in ("past", "seq"))


def test_sums_are_sizes_of_inputs_and_outputs():
    points = [{"batch": 2, "past": 5, "seq": 11}, {"batch": 3, "past": 13, "seq": 7}]
    shape = ("batch", 4, "past + seq", 8)
    specs = [[TensorSpec("present", shape, "float32").at(point)] for point in points]
    assert [str(dim) for dim in sums_of(specs, points)] == ["past + seq"]
    assert not sums_of([[TensorSpec("x", (16, 20), "float32")]] * 2, points)
