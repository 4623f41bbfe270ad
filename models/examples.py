"""Random inputs that an ONNX model accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from subtune.core.errors import ShapeError

if TYPE_CHECKING:
    import onnx


class Examples(Sequence[Mapping[str, np.ndarray]]):
    """The example inputs of the seeds 0, 1, ..., made when they are asked for: those of large batches are large."""

    def __init__(self, model: onnx.ModelProto, count: int) -> None:
        self._model, self._seeds = model, range(count)

    def __len__(self) -> int:
        return len(self._seeds)

    def __getitem__(self, index: Any) -> Any:
        return example_inputs(self._model, self._seeds[index])


def example_inputs(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Random values for every input of the model that has no initialiser.

    Float inputs are standard normal. Integer inputs that index a weight through `Gather` stay within that
    axis of the weight; other integer inputs (masks) and bool ones are zeros and ones.

    Raises:
        ShapeError: an input has a dimension without a value.
    """
    import onnx

    rng = np.random.default_rng(seed)
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    values: dict[str, np.ndarray[Any, Any]] = {}
    for entry in model.graph.input:
        if entry.name in weights:  # up to IR version 3 the initialisers are listed as inputs too
            continue
        tensor = entry.type.tensor_type
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            raise ShapeError(f"input {entry.name!r} has a dimension without a value, so no example can be made for it")
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        if np.issubdtype(dtype, np.floating):
            values[entry.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        else:
            bound = _index_bound(model, weights, entry.name)
            values[entry.name] = rng.integers(0, bound, shape).astype(dtype)
    return values


def _index_bound(model: onnx.ModelProto, weights: dict[str, tuple[int, ...]], name: str) -> int:
    """Exclusive upper bound of the values of the integer input: the least axis that it indexes, or 2."""
    bounds = []
    for node in model.graph.node:
        if node.op_type == "Gather" and node.input[1] == name and node.input[0] in weights:
            axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            bounds.append(weights[node.input[0]][axis])
    return min(bounds, default=2)
