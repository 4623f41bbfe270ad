"""Constants that follow from the shape: the formula is found from values at several instances, and holds at others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import tvm

from subtune.dynamic.varying import made_of_shape

POINTS = [{"past": p, "seq": s} for p, s in ((7, 5), (11, 7), (13, 3), (5, 11), (19, 13), (17, 23))]
GREATEST = {"past": 40, "seq": 9}
Formula = Callable[[int, int], np.ndarray]


def positions(past: int, seq: int) -> np.ndarray:
    return np.arange(past, past + seq)[None]


def columns(past: int, seq: int) -> np.ndarray:
    return (3 * np.arange(past, past + seq)[:, None] - 2 * np.arange(past + seq) + 7 * seq).astype("int32")


def causal(past: int, seq: int) -> np.ndarray:
    return np.tri(seq, past + seq, past, dtype=bool)[None, None]


def hidden(past: int, seq: int) -> np.ndarray:
    return np.where(causal(past, seq), np.float32(0), np.finfo("float32").min)


@pytest.mark.parametrize("values", [positions, columns, causal, hidden])
@pytest.mark.parametrize("at", [{"past": 0, "seq": 4}, {"past": 1, "seq": 1}, {"past": 6, "seq": 1}, GREATEST])
def test_values_at_other_instances(values: Formula, at: Mapping[str, int]) -> None:
    found = made_of_shape([values(**point) for point in POINTS], POINTS, GREATEST)
    assert found is not None
    workload = found.at(found.extents_at(at))
    expected = values(**at)
    (arg,) = workload.args
    assert (arg.shape, arg.dtype) == (expected.shape, str(expected.dtype))
    out = tvm.runtime.empty(expected.shape, str(expected.dtype))
    tvm.compile(workload.func, target="llvm")(out)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize(
    "values",
    [
        lambda past, seq: np.arange(past + seq) ** 2 + past,
        lambda past, seq: np.arange(past, past + seq).astype("float32"),
        lambda past, seq: np.tri(past + seq, seq, 1 - past, dtype=bool) ^ (seq > 6),
        lambda past, seq: np.eye(seq, past + seq, past, dtype=bool),
        lambda past, seq: np.arange(seq) + past % 5,
    ],
    ids=["squares", "floats", "other values", "a diagonal", "a remainder"],
)
def test_values_without_a_formula(values: Formula) -> None:
    assert made_of_shape([values(**point) for point in POINTS], POINTS, GREATEST) is None
