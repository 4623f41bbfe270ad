"""Models whose weights somebody else has in memory."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper as h
import pytest
import tvm
from onnx import TensorProto, numpy_helper

from subtune import frontends
from subtune.core.errors import ModelError
from subtune.frontends import LentModel
from subtune.frontends.onnx.file import read_lent

WEIGHT = np.random.default_rng(0).standard_normal((64, 32), dtype="float32")


def product(weight: onnx.TensorProto) -> onnx.ModelProto:
    x, y = h.make_tensor_value_info("x", 1, ["rows", 64]), h.make_tensor_value_info("y", 1, None)
    graph = h.make_graph([h.make_node("MatMul", ["x", "w"], ["y"])], "product", [x], [y], [weight])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9)


def lent() -> LentModel:
    empty = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=WEIGHT.shape, data_location=TensorProto.EXTERNAL)
    return LentModel(product(empty), {"w": WEIGHT}, "product")


def test_it_is_the_model_that_has_its_weights() -> None:
    whole = frontends.load(product(numpy_helper.from_array(WEIGHT, "w")), {"rows": 4})
    imported = frontends.load(lent(), {"rows": 4})
    tvm.ir.assert_structural_equal(imported.mod, whole.mod)
    assert (imported.inputs, imported.outputs, imported.name) == (whole.inputs, whole.outputs, "product")
    assert imported.reference is None


def test_nothing_is_copied_before_the_constant_is_made() -> None:
    model = lent()
    assert read_lent(model).weights["w"].read() is WEIGHT
    assert model.proto.ByteSize() < 200


def test_its_symbols_are_known() -> None:
    assert frontends.symbols_of(frontends.symbolic_inputs(lent())) == ("rows",)


def test_what_writes_onnx_does_not_take_it() -> None:
    with pytest.raises(ModelError, match="not LentModel"):
        frontends.load_whole(lent(), {"rows": 4})
