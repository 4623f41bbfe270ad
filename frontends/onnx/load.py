"""ONNX -> `Imported`: the stages in their order, each on the light protobuf (see `weights`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from subtune.frontends.imported import Imported
from subtune.frontends.onnx.file import OnnxModel
from subtune.frontends.onnx.fold import fold
from subtune.frontends.onnx.graph import name_nodes, order_nodes
from subtune.frontends.onnx.shapes import fix_inputs, infer
from subtune.frontends.onnx.support import check_model, check_ops, inline_functions, normalise_opsets
from subtune.frontends.onnx.to_relax import import_graph

_MAX_FOLDS = 100
"""Each round resolves one more link of a chain of shapes known only after folding; chains are short."""


def load_onnx(model: OnnxModel, shapes: Mapping[str, Sequence[int] | int]) -> Imported:
    """Import a model that `file` has read.

    Raises ModelError, ShapeError, UnsupportedOpsError: one sentence each, with the node or the input.
    """
    name_nodes(model.proto.graph)
    order_nodes(model.proto.graph)
    model = replace(model, proto=inline_functions(model.proto))
    name_nodes(model.proto.graph)
    normalise_opsets(model)
    check_model(model.proto)

    # Before the shapes, so that nobody supplies sizes for a model that cannot be imported anyway.
    check_ops(model.proto.graph, folded=False)
    proto = model.proto
    real_inputs = [value for value in proto.graph.input if value.name not in model.weights]
    inputs = fix_inputs(real_inputs, shapes)
    proto = infer(proto, strict=False)
    for _ in range(_MAX_FOLDS):
        if not fold(proto):
            break
        proto = infer(proto, strict=False)
    check_ops(proto.graph, folded=True)
    proto = infer(proto, strict=True)
    mod, outputs = import_graph(replace(model, proto=proto), inputs)
    return Imported(mod, inputs, outputs, model.name, model.source)
