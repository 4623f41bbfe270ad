"""Quantisation where a float32 ends, and chains of it: against ONNX Runtime, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

from subtune.patterns.reductions import Blocks
from subtune.pipeline import prepare
from subtune.tir.expressions import loads
from tests.frontends.onnx.one_node import F, ours
from tests.frontends.onnx.test_qdq import chain
from tests.qdq_graph import QdqGraph, feeds_of

MOST = np.finfo(F).max


@pytest.mark.parametrize(
    ("of", "zero", "steps"), [("uint8", 255, 255), ("int8", 0, 128), ("int16", 32767, 65535), ("uint16", 65535, 65535)]
)
def test_steps_that_reach_infinity(of: str, zero: int, steps: int) -> None:
    """A mask of float32's least number: its scale times all steps is beyond float32, and it dequantises to -inf."""
    x = F([-np.inf, -MOST, -MOST / 2, -1, 0, 1, MOST / 3, MOST, np.inf])
    scale = np.nextafter(F(MOST / steps), F(np.inf))
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    model = chain([node], x, {"s": scale, "z": np.array(zero, of)})
    (wanted,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert wanted[0] == wanted.min()
    np.testing.assert_array_equal(ours(model, {"x": x}), wanted)


def test_a_chain_of_roundings_to_words_stays_small() -> None:
    """Each of them has its operand once. With three times, ten were an expression of 60 000 parts."""
    g = QdqGraph((3, 40), dtype="int16", scale=1e-3, zero=5, opset=21)
    at: Any = g.operand()
    for turn in range(5):
        other = g.constant(F([1.5, 0.25, 0.9][turn % 3]))
        at = g.op(("Mul", "Add")[turn % 2], at, other)
        scale = 1e-3 * (1 + turn / 7)
        at = g.floats(g.quantised(at, scale, turn - 3), scale, turn - 3)
    model = g.model(at)
    (one,) = prepare(model).subgraphs
    blocks = Blocks.of(one.workload.func)
    assert isinstance(blocks, Blocks)
    for block in blocks.made.values():
        elements = [load.source for load in loads(block.body.value) if load.source.shape]
        assert len(elements) == len(set(elements))
    feeds = feeds_of(model)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    (wanted,) = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    assert len(np.unique(wanted)) > 50
    np.testing.assert_array_equal(ours(model, feeds), wanted)
