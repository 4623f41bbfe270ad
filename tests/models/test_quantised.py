"""`NAME-int8`: which models there are, that they are described, deterministic, and refuse what they cannot be."""

from __future__ import annotations

import json

import pytest

from subtune import models
from subtune.core.errors import ModelError
from subtune.models.catalog import ARGUMENTS_KEY, MODEL_KEY


def test_names_and_descriptions() -> None:
    found = models.quantised_names()
    assert set(found) == {f"{name}-int8" for name in models.names()} - {"lstm-int8"}
    assert models.describe("resnet18-int8").startswith("resnet18 with products of 8 bits")


def test_a_model_says_what_it_is_and_is_the_same_twice() -> None:
    pytest.importorskip("onnxruntime")
    first, second = (models.reduced("mlp-int8", hidden=16) for _ in range(2))
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
    said = {entry.key: entry.value for entry in first.metadata_props}
    assert said.keys() == {MODEL_KEY, ARGUMENTS_KEY}
    assert said[MODEL_KEY] == "mlp-int8"
    assert json.loads(said[ARGUMENTS_KEY])["hidden"] == 16


@pytest.mark.parametrize("name", models.quantised_names())
@pytest.mark.grid
def test_every_one_is_built(name: str) -> None:
    """And has integers in it, of the float model's inputs and outputs."""
    pytest.importorskip("onnxruntime")
    model, exact = models.reduced(name), models.reduced(name.removesuffix("-int8"))
    weights = {tensor.name for tensor in exact.graph.initializer}
    assert [v.name for v in model.graph.input] == [v.name for v in exact.graph.input if v.name not in weights]
    assert [v.name for v in model.graph.output] == [v.name for v in exact.graph.output]
    assert sum(node.op_type == "QuantizeLinear" for node in model.graph.node) >= 4
    assert not {node.domain for node in model.graph.node} - {""}


def test_refusals() -> None:
    with pytest.raises(ModelError, match=r"no model 'lstm-int8'.*of all but lstm NAME-int8"):
        models.build("lstm-int8")
    with pytest.raises(ModelError, match=r"no model 'resnet19-int8' \(did you mean resnet18-int8"):
        models.build("resnet19-int8")
    with pytest.raises(ModelError, match=r"mlp-int8: dtype='float16' is not supported; it is made of float32"):
        models.build("mlp-int8", dtype="float16")
    with pytest.raises(ModelError, match="mlp-int8 has no argument 'depth'"):
        models.build("mlp-int8", depth=2)
