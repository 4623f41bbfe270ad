"""Shape arithmetic is exact, bounded, and leaves alone what ONNX leaves undefined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from subtune.frontends.shape_arithmetic import MAX_ELEMENTS, evaluate, known_shape


def ints(*values: Any) -> np.ndarray:
    return np.asarray(values, np.int64)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "expected"),
    [
        ("Div", (ints(-7, 7), ints(2, -2)), {}, ints(-3, -3)),
        ("Mod", (ints(-7, 7), ints(2, -2)), {}, ints(1, -1)),
        ("Shape", (known_shape((1 << 20, 3, 4)),), {"start": 1}, ints(3, 4)),
        ("Size", (known_shape((1 << 20, 3)),), {}, np.int64(3 << 20)),
        ("Slice", (ints(1, 2, 3), ints(2), ints(-9), ints(0), ints(-1)), {}, ints(3, 2, 1)),
        ("Reshape", (ints(1, 2), ints(0, -1)), {}, ints([1], [2])),
        ("Concat", (np.empty(0, np.int64), ints(5)), {"axis": 0}, ints(5)),
        ("Clip", (ints(-4, 9), None, np.int64(5)), {}, ints(-4, 5)),
        ("ReduceProd", (ints(2, 3), ints(0)), {"keepdims": 0}, np.int64(6)),
    ],
)
def test_exact(op: str, inputs: tuple[Any, ...], attrs: dict[str, Any], expected: np.ndarray) -> None:
    found = evaluate(op, inputs, attrs, 18)
    assert found is not None
    assert found[0].dtype == expected.dtype
    np.testing.assert_array_equal(found[0], expected)


def test_several_outputs() -> None:
    found = evaluate("Split", (ints(1, 2, 3), ints(1, 2)), {"axis": 0}, 13, num_outputs=2)
    assert found is not None
    assert [array.tolist() for array in found] == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Div", (ints(1), ints(0)), {}),
        ("Mod", (ints(1), ints(0)), {}),
        ("Gather", (ints(1, 2), ints(2)), {}),
        ("Cast", (np.float32([1e20]),), {"to": 6}),
        ("Reshape", (ints(1, 2, 3), ints(2, 2)), {}),
        ("Pow", (ints(2), ints(-1)), {}),
        ("Squeeze", (ints(1, 2), ints(0)), {}),
        ("Exp", (np.float32([1]),), {}),
    ],
)
def test_what_is_undefined_or_no_shape_arithmetic_is_left_alone(
    op: str, inputs: tuple[Any, ...], attrs: dict[str, Any]
) -> None:
    assert evaluate(op, inputs, attrs, 18) is None


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("ConstantOfShape", (ints(1 << 40),)),
        ("Expand", (ints(1), ints(1 << 20, 1 << 20))),
        ("Tile", (ints(1, 2), ints(1 << 40))),
        ("Range", (np.int64(0), np.int64(1 << 50), np.int64(1))),
        ("Neg", (np.zeros(MAX_ELEMENTS + 1, np.int64),)),
    ],
)
def test_data_is_left_alone(op: str, inputs: tuple[Any, ...]) -> None:
    assert evaluate(op, inputs, {}, 18) is None


def test_operands_aligned_by_an_attribute_are_left_alone() -> None:
    assert evaluate("Add", (ints(1, 2), ints(1)), {"broadcast": 1, "axis": 0}, 6) is None
