"""ONNX -> `Imported`: the stages in their order, each on the light protobuf (see `weights`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from subtune.core.reference import Reference
from subtune.frontends.imported import Imported
from subtune.frontends.onnx.file import OnnxModel
from subtune.frontends.onnx.graph import name_nodes, order_nodes, unchecked_indices
from subtune.frontends.onnx.lent import LentModel
from subtune.frontends.onnx.reference import OnnxRuntime, has_float8
from subtune.frontends.onnx.shapes import fix_inputs, infer
from subtune.frontends.onnx.support import check_model, check_ops, inline_functions, normalise_opsets
from subtune.frontends.onnx.to_relax import import_graph


def load_onnx(model: OnnxModel, shapes: Mapping[str, Sequence[int] | int]) -> Imported:
    """Import a model that `file` has read.

    Raises ModelError, ShapeError, UnsupportedOpsError: one sentence each, with the node or the input.
    """
    model = checked(model)
    # Before the shapes, so that nobody supplies sizes for a model that cannot be imported anyway.
    check_ops(model.proto.graph)
    real_inputs = [value for value in model.proto.graph.input if value.name not in model.weights]
    inputs = fix_inputs(real_inputs, shapes, may_be_dynamic=True)
    mod, outputs = import_graph(replace(model, proto=infer(model.proto)), inputs)
    indexing = unchecked_indices(model.proto.graph, [spec.name for spec in inputs])
    return Imported(mod, inputs, outputs, model.name, _reference(model), _notes(indexing))


def _reference(model: OnnxModel) -> Reference | None:
    if isinstance(model.source, LentModel):
        return model.source.reference
    return OnnxRuntime(model.source, of_float8=has_float8(model.proto))


def checked(model: OnnxModel) -> OnnxModel:
    """The model sorted, its nodes named, its functions inlined. Raises ModelError: it is not valid ONNX."""
    name_nodes(model.proto.graph)
    order_nodes(model.proto.graph)
    model = replace(model, proto=inline_functions(model.proto))
    name_nodes(model.proto.graph)
    normalise_opsets(model)
    check_model(model.proto)
    return model


def _notes(indexing: Sequence[str]) -> tuple[str, ...]:
    if not indexing:
        return ()
    more = f" and {len(indexing) - 1} more" if len(indexing) > 1 else ""
    return (
        f"indices not checked: {indexing[0]!r}{more}; one out of range, an error in ONNX, means the nearest element",
    )
