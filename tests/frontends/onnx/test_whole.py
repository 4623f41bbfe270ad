"""A model read to be handed on: one protobuf, with its weights, of fixed shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from subtune.core.errors import ModelError, ShapeError
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends import load_whole

WEIGHT = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")


def product() -> onnx.ModelProto:
    """One 16 KB weight as an initialiser, one in a Constant node."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 13]> g (float[n,64] x) => (float[n,64] y)'
        "{ h = MatMul(x, w)\n y = MatMul(h, c) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "w"))
    constant = onnx.helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(WEIGHT + 1))
    model.graph.node.append(constant)  # behind its use: sorted when it is read
    model.metadata_props.add(key="labels", value="a, b")
    return model


def test_weights_are_in_it_and_shapes_are_fixed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save_model(product(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    for given, named in ((path, "m"), (product(), "g"), (product().SerializeToString(), "g")):
        whole, specs, name = load_whole(given, {"n": 3})
        assert name == named
        assert specs == (TensorSpec("x", (3, 64), "float32"),)
        assert [value.name for value in whole.graph.input] == ["x"]
        held = {tensor.name: numpy_helper.to_array(tensor) for tensor in whole.graph.initializer}
        assert held.keys() == {"w", "c"}
        np.testing.assert_array_equal(held["w"], WEIGHT)
        np.testing.assert_array_equal(held["c"], WEIGHT + 1)
        assert [(entry.key, entry.value) for entry in whole.metadata_props] == [("labels", "a, b")]
        onnx.checker.check_model(whole, full_check=True)


def test_the_model_given_stays_as_it_is() -> None:
    model = product()
    before = model.SerializeToString()
    whole, _, _ = load_whole(model, {"n": 3})
    whole.graph.initializer[0].raw_data = b""
    assert model.SerializeToString() == before


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match="give fixed sizes"):
        load_whole(product())
    with pytest.raises(ModelError, match="There is no file"):
        load_whole(tmp_path / "none.onnx")
    (tmp_path / "m.relay").write_text("def @main(%x: Tensor[(2), float32]) { %x }")
    with pytest.raises(ModelError, match="is Relay's"):
        load_whole(tmp_path / "m.relay")
    with pytest.raises(ModelError, match="A model is a path"):
        load_whole(3)  # type: ignore[arg-type]
