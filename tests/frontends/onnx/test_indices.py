"""Indices out of range: constant ones are refused; those that come at run time touch nothing but the tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from subtune.core.errors import UnsupportedOpsError
from subtune.frontends import load
from subtune.integrations.onnx_backend import SubtuneBackend
from tests.frontends.onnx.test_ops import floats, node_model

X = np.arange(12, dtype=np.float32).reshape(3, 4)
ONE = np.float32([[100]])


@pytest.fixture(scope="module", autouse=True)
def quick_code() -> None:
    """None here: what is undefined, as an index of a NaN, only LLVM's optimisations take for what never happens."""


def ints(*values: Any) -> np.ndarray:
    return np.asarray(values, np.int64)


@pytest.mark.parametrize(
    ("op", "index", "rest"),
    [
        ("Gather", ints(3), []),
        ("Gather", ints(-4), []),
        ("GatherElements", ints([3]), []),
        ("GatherND", ints([1, 4]), []),
        ("ScatterElements", ints([3]), [ONE]),
        ("ScatterND", ints([0, -5]), [ONE[0]]),
    ],
)
def test_a_constant_index_is_refused(op: str, index: np.ndarray, rest: list[np.ndarray]) -> None:
    constants = {i + 1: x for i, x in enumerate([index, *rest])}
    model, _ = node_model(op, [X], 13, 1, constants)
    with pytest.raises(UnsupportedOpsError, match=rf"{op} node 'y0' has the index -?\d, out of the range of an axis"):
        load(model)


@pytest.mark.parametrize(
    ("op", "inputs", "expected"),
    [
        ("Gather", [X, ints(7, -9, -1)], X[[2, 0, 2]]),
        ("GatherElements", [X, ints([9, -9, -1, 0])], [[8, 1, 10, 3]]),
        ("GatherND", [X, ints([9, 1], [0, -9])], [9, 0]),
        ("ScatterElements", [X, ints([1 << 40]), ONE], np.where(X == 8, 100, X)),
        ("ScatterND", [X, ints([-(1 << 40), 1]), ONE[0]], np.where(X == 1, 100, X)),
        ("MaxUnpool", [X[None, None, :1, :1], ints([[[[1 << 40]]]])], [[[[0, 0], [0, 0]]]]),
    ],
)
def test_an_index_at_run_time_means_the_nearest_element(op: str, inputs: list[np.ndarray], expected: Any) -> None:
    attrs = {"kernel_shape": [2, 2]} if op == "MaxUnpool" else {}
    model, feeds = node_model(op, inputs, 13, **attrs)
    (got,) = SubtuneBackend.prepare(model).run(feeds)
    np.testing.assert_array_equal(got, np.asarray(expected, np.float32))


def test_sequences_longer_than_the_tensor_are_reversed_whole() -> None:
    model, feeds = node_model("ReverseSequence", [X, ints(1 << 40, 2, 0, -3)], 10, time_axis=0, batch_axis=1)
    (got,) = SubtuneBackend.prepare(model).run(feeds)
    np.testing.assert_array_equal(got, np.stack([X[::-1, 0], X[[1, 0, 2], 1], X[:, 2], X[:, 3]], axis=1))


def test_coordinates_that_are_no_numbers_read_nothing_else() -> None:
    grid = np.full((1, 2, 2, 2), np.nan, np.float32)
    for mode in ("linear", "nearest", "cubic"):
        model, feeds = node_model("GridSample", [floats(1, 1, 3, 3), grid], 20, mode=mode, padding_mode="reflection")
        (got,) = SubtuneBackend.prepare(model).run(feeds)
        assert got.shape == (1, 1, 2, 2)


def test_the_user_hears_of_indices_that_are_not_checked() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
        g (float[4,4] x, int64[2] i) => (float[2,4] y, int64 n) <int64 zero = {0}> {
            y = Gather(x, i)
            s = Shape(x)
            n = Gather(s, zero)
        }"""
    (note,) = load(onnx.parser.parse_model(text)).notes
    assert note.startswith("indices not checked: 'y'; ")
    assert not load("zoo:mlp").notes
