"""torch.onnx's program -> a protobuf whose large weights stay the module's own memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.export import ExportedProgram

from subtune.core.errors import ModelError
from subtune.frontends import LentModel

_LEAST_BYTES = 4096
"""Of a weight that is lent; smaller ones, sizes among them, are in the protobuf."""


def to_onnx(program: ExportedProgram) -> Any:
    """A `torch.onnx.ONNXProgram`. Raises whatever torch.onnx does; ModelError: a package that it needs is missing."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as e:
        raise ModelError("onnxscript is not installed, which PyTorch needs: pip install 'subtune[torch]'") from e
    return torch.onnx.export(program, dynamo=True, verbose=False)


def lent(onnx_program: Any, name: str, outputs: Sequence[str], symbols: Mapping[str, str]) -> LentModel:
    """The model of a `torch.onnx.ONNXProgram`, which is used up.

    Args:
        outputs: what its outputs are to be called, in their order; no input has such a name.
        symbols: the names of dimensions there -> their names here.
    """
    import onnx_ir as ir

    model = onnx_program.model
    _call_outputs(model.graph, outputs)
    arrays: dict[str, np.ndarray] = {}
    for key, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes <= _LEAST_BYTES:
            continue
        arrays[key] = np.ascontiguousarray(tensor.numpy())
        value.const_value = ir.ExternalTensor("lent", 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=key)
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        node.metadata_props.clear()  # the Python stack of each
    proto = ir.to_proto(model)
    for info in proto.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = _renamed(dim.dim_param, symbols)
    for info in proto.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")  # they follow, and may be written in a way that is no polynomial
    return LentModel(proto, arrays, name)


def _call_outputs(graph: Any, names: Sequence[str]) -> None:
    """Name the outputs, and what has such a name already otherwise."""
    import onnx_ir as ir

    found: list[Any] = []
    for value in graph.outputs:
        if value in found or value.is_graph_input() or value.is_initializer():
            node = ir.node("Identity", [value])
            graph.append(node)
            value = node.outputs[0]
        found.append(value)
    graph.outputs[:] = found
    inner = [value for node in graph for value in node.outputs] + list(graph.initializers.values())
    taken = {value.name for value in inner}
    for value in inner:
        if value.name in names:
            value.name = next(new for i in count() if (new := f"{value.name}_{i}") not in taken)
            taken.add(value.name)
    for value, name in zip(found, names, strict=True):
        value.name = name


def _renamed(text: str, symbols: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda found: symbols.get(found[0], found[0]), text)
