"""Interpolations stay in planes where a device reads those as fast, and nothing wants its channels last."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from subtune.frontends.dispatch import load
from subtune.passes.layout_nhwc import channels_to_last, settle_permutes


def resized(shape: tuple[int, ...], scale: float, mode: str, convolves: bool = False) -> Any:
    constants = [numpy_helper.from_array(np.array([1, 1, *[scale] * (len(shape) - 2)], "float32"), "scales")]
    nodes = [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode=mode), helper.make_node("Relu", ["y"], ["z"])]
    if convolves:
        weight = np.random.default_rng(0).standard_normal((4, shape[1], *[1] * (len(shape) - 2))).astype("float32")
        constants.append(numpy_helper.from_array(weight, "w"))
        nodes.append(helper.make_node("Conv", ["z", "w"], ["c"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return load(onnx.shape_inference.infer_shapes(model)).mod


CASES = {
    "linear": ((2, 9, 7, 10), 2.0, "linear"),
    "linear, smaller": ((1, 8, 12, 9), 0.5, "linear"),
    "linear, three axes": ((1, 8, 4, 5, 6), 1.5, "linear"),
    "linear, one axis": ((2, 8, 15), 3.0, "linear"),
    "cubic": ((1, 8, 6, 7), 2.0, "cubic"),
}


@pytest.mark.parametrize("name", CASES)
def test_no_permutation_is_left(name: str, ops: Any, agree: Any) -> None:
    before = resized(*CASES[name])
    assert ops(before)["permute_dims"] == 2, "the importer puts channels last"
    after = settle_permutes(channels_to_last(before, reads_planes=True))
    assert ops(after)["permute_dims"] == 0
    agree(before, after, 1e-6)


def test_a_convolution_has_its_channels_last() -> None:
    before = resized((1, 8, 6, 7), 2.0, "linear", convolves=True)
    last = settle_permutes(channels_to_last(before))
    planes = settle_permutes(channels_to_last(before, reads_planes=True))
    assert planes.script() == last.script()


def test_devices_that_want_channels_last_have_them(ops: Any) -> None:
    after = settle_permutes(channels_to_last(resized(*CASES["linear"]), keeps_planes=True))
    assert ops(after)["permute_dims"] == 2
