"""Constants that are windows of a longer instance's: found from their values, and copied at others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import tvm

from subtune.core.domain import Domain, Symbol
from subtune.core.errors import ModelError
from subtune.dynamic.points import sample_points
from subtune.dynamic.windows import Windows

Formula = Callable[[Mapping[str, int]], np.ndarray]
CACHE = Domain((Symbol.uniform("past", tuple(range(41))), Symbol.uniform("seq", tuple(range(1, 17)))))
LENGTH = Domain((Symbol.uniform("seq", tuple(range(1, 24))),))
TABLE = np.random.default_rng(0).standard_normal((400, 4)).astype(np.float32)


def rows(at: Mapping[str, int]) -> np.ndarray:
    return TABLE[at["past"] : at["past"] + at["seq"]][None]


def angles(at: Mapping[str, int]) -> np.ndarray:
    return np.cos(np.arange(at["past"], at["past"] + at["seq"])[:, None] / 10 ** np.arange(3)).astype(np.float32)


def distances(at: Mapping[str, int]) -> np.ndarray:
    """Of keys from queries, by the logarithm, as T5 has them."""
    far = np.arange(at["past"], at["past"] + at["seq"])[:, None] - np.arange(at["past"] + at["seq"])
    return np.log1p(np.maximum(far, 0)).astype(np.float32)[None]


def last(at: Mapping[str, int]) -> np.ndarray:
    return TABLE[100 - at["seq"] : 100]


def centred(at: Mapping[str, int]) -> np.ndarray:
    return TABLE[None, 100 - at["seq"] + 1 : 100 + at["seq"]]


def windows(values: Formula, domain: Domain) -> tuple[Windows, list[np.ndarray]]:
    points = sample_points(domain)
    return Windows(lambda point: [TABLE[:3], values(point)], points, domain), [values(point) for point in points]


@pytest.mark.parametrize(
    ("values", "domain"),
    [(rows, CACHE), (angles, CACHE), (distances, CACHE), (last, LENGTH), (centred, LENGTH)],
    ids=["rows", "angles", "distances", "last", "centred"],
)
def test_windows_at_all_instances(values: Formula, domain: Domain) -> None:
    searched, arrays = windows(values, domain)
    found = searched.of(arrays)
    assert found is not None
    assert found.table is not None
    for past in (0, 1, 17, 40):
        for seq in (1, 2, 16):
            at = {name: value for name, value in (("past", past), ("seq", seq)) if name in domain.names}
            workload, expected = found.workload.at(found.workload.extents_at(at)), values(at)
            out = tvm.runtime.empty(expected.shape, "float32")
            tvm.compile(workload.func, target="llvm")(tvm.runtime.tensor(found.table), out)
            np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize(
    "values",
    [
        lambda at: TABLE[at["past"] : at["past"] + at["seq"]] * at["seq"],
        lambda at: TABLE[7 * at["past"] : 7 * at["past"] + at["seq"]],
        lambda at: TABLE[: at["past"]] + at["past"],
    ],
    ids=["scaled", "another place", "no window"],
)
def test_what_is_no_window(values: Formula) -> None:
    searched, arrays = windows(values, CACHE)
    assert searched.of(arrays) is None


def test_instances_longer_than_the_model_can_be() -> None:
    def constants(point: Mapping[str, int]) -> Sequence[np.ndarray]:
        raise ModelError(f"The model has no rows for {point}.")

    points = sample_points(CACHE)
    assert Windows(constants, points, CACHE).of([rows(point) for point in points]) is None


def test_domains_that_begin_later() -> None:
    domain = Domain((Symbol.uniform("past", (5, 9, 13, 40)), Symbol.uniform("seq", (1, 7))))
    searched, arrays = windows(rows, domain)
    found = searched.of(arrays)
    assert found is not None
    at = {"past": 5, "seq": 7}
    workload = found.workload.at(found.workload.extents_at(at))
    out = tvm.runtime.empty((1, 7, 4), "float32")
    tvm.compile(workload.func, target="llvm")(tvm.runtime.tensor(found.table), out)
    np.testing.assert_array_equal(out.numpy(), rows(at))
