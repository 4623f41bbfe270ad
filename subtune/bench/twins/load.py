"""Which files have a twin, and the twin of one: the file's metadata says what the zoo built."""

from __future__ import annotations

import importlib
import json
from importlib.util import find_spec
from typing import Any

from subtune.models.catalog import ARGUMENTS_KEY, MODEL_KEY


def model_of(path: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of the zoo's model in the ONNX file; None where it is another's, or has no twin."""
    import onnx

    metadata = {entry.key: entry.value for entry in onnx.load(path, load_external_data=False).metadata_props}
    name = metadata.get(MODEL_KEY, "")
    if not name.isidentifier() or find_spec(f"subtune.bench.twins.{name}") is None or ARGUMENTS_KEY not in metadata:
        return None
    return name, json.loads(metadata[ARGUMENTS_KEY])


def load_twin(path: str) -> Any:
    """The nn.Module of a file that has a twin, ready for inference on a CPU, in the file's type.

    Inputs and outputs are the ONNX file's, in their order. Raises KeyError for a file whose weights have other names.
    """
    import onnx

    from subtune.bench.torch_arrays import as_tensor
    from subtune.bench.twins.weights import Weights

    found = model_of(path)
    assert found is not None, f"{path} has no twin"
    name, arguments = found
    initialisers = onnx.load(path).graph.initializer
    weights = Weights({t.name: as_tensor(onnx.numpy_helper.to_array(t).copy()) for t in initialisers})
    module = importlib.import_module(f"subtune.bench.twins.{name}").twin(weights, arguments)
    return module.eval().requires_grad_(False)
