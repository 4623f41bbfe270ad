"""Example inputs fit the model: names, shapes, dtypes, and indices within their tables."""

from __future__ import annotations

import numpy as np
import pytest

from subtune import models
from subtune.core.errors import ShapeError


@pytest.mark.parametrize("name", models.names())
def test_inputs_have_the_declared_shapes(name: str) -> None:
    model = models.reduced(name, batch=2, dtype="float16")
    weights = {tensor.name for tensor in model.graph.initializer}
    declared = {
        entry.name: tuple(dim.dim_value for dim in entry.type.tensor_type.shape.dim)
        for entry in model.graph.input
        if entry.name not in weights
    }
    inputs = models.example_inputs(model)
    assert {key: value.shape for key, value in inputs.items()} == declared
    assert {value.dtype for value in inputs.values()} <= {np.dtype(np.float16), np.dtype(np.int64)}


def test_seed_decides() -> None:
    model = models.reduced("mlp")
    first, again, other = (models.example_inputs(model, seed)["input"] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_indices_stay_within_the_table_and_use_it() -> None:
    inputs = models.example_inputs(models.reduced("bert", batch=64, vocab=50))
    assert inputs["input_ids"].min() == 0
    assert inputs["input_ids"].max() == 49
    assert set(np.unique(inputs["token_type_ids"])) == {0, 1}
    assert set(np.unique(inputs["attention_mask"])) == {0, 1}


def test_symbolic_dimension_is_refused_by_name() -> None:
    model = models.reduced("mlp")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    with pytest.raises(ShapeError, match="input 'input' has a dimension without a value"):
        models.example_inputs(model)
