"""A model as one function of addresses: the same results as through Relax's VM, which what is no such model keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from subtune import models
from subtune.artifact import Artifact, load
from subtune.artifact.random_inputs import random_inputs
from subtune.backends.cpu.lowering import straight_line as lowering
from subtune.driver import compile_model


def compiled(model, path: Path) -> Artifact:
    compile_model(model, path, tune=False, verify=False, threads=2)
    return load(path)


@pytest.mark.parametrize("name", ["mobilenet_v2", "bert", "gpt2", "lstm"])
def test_what_the_vm_computes(name, tmp_path, monkeypatch):
    model = models.reduced(name)
    direct = compiled(model, tmp_path / "direct.subtune")
    monkeypatch.setattr(lowering, "straight_line", lambda *_: None)
    through_vm = compiled(model, tmp_path / "vm.subtune")
    assert direct.manifest.memory.takes_addresses
    assert not through_vm.manifest.memory.takes_addresses
    inputs = random_inputs(direct.inputs)
    expected = through_vm.run(inputs)
    for output, array in direct.run(inputs).items():
        np.testing.assert_array_equal(array, expected[output])


@pytest.mark.parametrize(("dtype", "is_left"), [("int64", True), ("float32", False)])
def test_what_tvm_sorts_is_left_to_the_vm(dtype, is_left, tmp_path):
    """Sorts of 64 bits: of others there are functions of our own."""
    info, kind = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Constant", [], ["k"], value_ints=[3]),
        helper.make_node("TopK", ["x", "k"], ["largest", "places"]),
    ]
    outputs = [info("largest", kind, [4, 3]), info("places", TensorProto.INT64, [4, 3])]
    graph = helper.make_graph(nodes, "top", [info("x", kind, [4, 16])], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    artifact = compiled(model, tmp_path / "top.subtune")
    assert artifact.manifest.memory.takes_addresses != is_left
    x = np.random.default_rng(0).permutation(64).reshape(4, 16).astype(dtype)
    np.testing.assert_array_equal(artifact.run({"x": x})["largest"], -np.sort(-x)[:, :3])
