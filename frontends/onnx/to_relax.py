"""The prepared graph -> Relax: `ops` converts it, and what it gives is compared with what ONNX infers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax

from subtune.core.errors import ModelError, ShapeError
from subtune.core.tensor_spec import NARROW, TensorSpec, carrier
from subtune.frontends.onnx.file import OnnxModel
from subtune.frontends.onnx.graph import all_nodes, subgraphs
from subtune.frontends.onnx.ops import ConstantInputsError, import_onnx
from subtune.frontends.onnx.shapes import dtype_name, spec_of


def import_graph(model: OnnxModel, inputs: Sequence[TensorSpec]) -> tuple[tvm.IRModule, tuple[TensorSpec, ...]]:
    """The Relax module and the outputs of a model whose light protobuf is sorted, static and inferred.

    Raises:
        UnsupportedOpsError: all nodes that are refused for their operator, attributes or types.
        ShapeError: a shape depends on data. ModelError: the module disagrees with what ONNX infers.
    """
    graph = model.proto.graph
    # Weights that nothing uses are not even read.
    used = {name for node in all_nodes(graph) for name in node.input} | {output.name for output in graph.output}
    used |= {output.name for node in all_nodes(graph) for sub in subgraphs(node) for output in sub.output}
    kept = [value for value in graph.input if value.name not in model.weights or value.name in used]
    kept = [type(value).FromString(value.SerializeToString()) for value in kept]
    del graph.input[:]
    graph.input.extend(kept)
    constants = {name: weight.read() for name, weight in model.weights.items() if name in used}
    try:
        mod = import_onnx(model.proto, constants=constants)
    except ConstantInputsError as error:
        raise ShapeError(str(error)) from error
    result = mod["main"].ret_ty
    fields = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    outputs = []
    for value, kind in zip(graph.output, fields, strict=True):
        declared = dtype_name(value.type.tensor_type.elem_type) if value.type.tensor_type.elem_type else ""
        shape, held = _static(value.name, kind)
        spec = TensorSpec(value.name, shape, declared if declared in NARROW and held == carrier(declared) else held)
        inferred = spec_of(value)
        if inferred is not None and inferred != spec:
            raise ModelError(f"The imported output {spec} is not what ONNX infers: {inferred}; please report this.")
        outputs.append(spec)
    return mod, tuple(outputs)


def _static(name: str, kind: Any) -> tuple[tuple[int, ...], str]:
    """Shape and dtype of a Relax tensor type. Raises ShapeError: it is dynamic."""
    dims = getattr(getattr(kind, "shape", None), "values", None)
    if dims is None or not all(isinstance(dim, int | tvm.tirx.IntImm) for dim in dims):
        raise ShapeError(f"The output {name!r} has a shape that depends on data, which is not supported.")
    return tuple(int(dim) for dim in dims), str(kind.dtype)
