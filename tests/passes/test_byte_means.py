"""Means of quantised tensors: ONNX Runtime's QLinearGlobalAveragePool and QLinearAveragePool, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from subtune.passes.byte_sums import byte_sums
from subtune.pipeline import prepare
from tests.frontends.onnx.one_node import ours
from tests.qdq_graph import QdqGraph, feeds_of


def pooled(op: str, dtype: str, scale: float, zero: int, dims: tuple[int, ...] = (2, 19, 6, 8), **attrs: Any) -> Any:
    """A pool of what was dequantised, quantised."""
    g = QdqGraph(dims, dtype=dtype, scale=0.02, zero=3)
    return g.model(g.floats(g.quantised(g.op(op, g.operand(), **attrs), scale, zero), scale, zero))


WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}


@pytest.mark.parametrize(("dtype", "scale", "zero"), [("uint8", 0.02, 3), ("uint8", 0.013, 101), ("int8", 0.02, -7)])
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("GlobalAveragePool", {}),
        ("AveragePool", WINDOW),
        ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 1, 1, 0]}),
        ("AveragePool", {"kernel_shape": [2, 4], "pads": [1, 1, 1, 1], "strides": [1, 2], "count_include_pad": 1}),
    ],
)
def test_to_the_bit(op: str, attrs: dict[str, Any], dtype: str, scale: float, zero: int) -> None:
    model = pooled(op, dtype, scale, zero, **attrs)
    feeds = feeds_of(model)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, feeds)
    assert len(np.unique(wanted)) > 8
    np.testing.assert_array_equal(ours(model, feeds), wanted)
    assert not prepare(model).in_floats


def test_others_stay_means_of_floats() -> None:
    """A mean that is read as floats, and a mean of floats that is quantised."""
    g = QdqGraph((2, 5, 4, 4))
    read = g.op("GlobalAveragePool", g.operand())
    free = g.quantised(g.op("GlobalAveragePool", g.op("Exp", g.operand())), 0.1, 0)
    text = byte_sums(prepare(g.model(read, free)).imported.mod).script()
    assert text.count("R.mean(") == 2
    assert "R.sum(" not in text
