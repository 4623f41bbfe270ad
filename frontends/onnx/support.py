"""Which operators can be imported: all that cannot are listed at once, before anything is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx.inliner
from onnx import defs, helper

from subtune.core.errors import ModelError, UnsupportedOpsError
from subtune.frontends.one_line import one_line
from subtune.frontends.onnx.file import OnnxModel
from subtune.frontends.onnx.graph import all_nodes, label, qualified_op
from subtune.frontends.onnx.ops import reason, supported_ops

_MAX_NODES_SHOWN = 5

_LEAST = {("GatherND", "batch_dims"): 0}
"""Attributes whose lower bound onnx's shape inference trusts: beyond it the process crashes (onnx 1.23)."""


def check_ops(graph: onnx.GraphProto) -> None:
    """Raises UnsupportedOpsError: every operator of the graph that cannot be imported in any form, with its nodes.

    The branches of an If are passed over: the condition may prove constant, and then only one of them counts.
    """
    problems: dict[str, list[str]] = {}
    supported = supported_ops()
    for node in all_nodes(graph, into=lambda node: node.op_type != "If"):
        if (node.domain, node.op_type) not in supported:
            problems.setdefault(f"{qualified_op(node)}{reason(node.domain, node.op_type)}", []).append(node.name)
    if problems:
        raise UnsupportedOpsError(describe_ops(problems))


def describe_ops(problems: Mapping[str, Iterable[str]]) -> str:
    """One sentence: op -> its nodes' names."""
    parts = []
    for op, names in problems.items():
        shown = [repr(name) for name in names]
        if len(shown) > _MAX_NODES_SHOWN:
            shown = [*shown[:_MAX_NODES_SHOWN], f"{len(shown) - _MAX_NODES_SHOWN} more"]
        parts.append(f"{op} in {', '.join(shown)}")
    return f"The model uses operators that are not supported: {'; '.join(parts)}."


def opset_of(proto: onnx.ModelProto) -> int:
    """The version of ONNX's own operators; IR versions below 3 meant 1 without saying so."""
    return next((entry.version for entry in proto.opset_import if entry.domain == ""), 1)


def normalise_opsets(model: OnnxModel) -> None:
    """ "ai.onnx" is another name of the domain "", and imports of domains that no node uses do not count; in place.

    Raises ModelError: an opset that the onnx package does not know, or that the model does not import.
    """
    proto = model.proto
    nodes = list(all_nodes(proto.graph))
    for node in nodes:
        if node.domain == "ai.onnx":
            node.domain = ""
    used = {node.domain for node in nodes} | {""}
    versions: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if domain in used:
            versions[domain] = max(versions.get(domain, 0), entry.version)
    if not proto.opset_import:
        versions[""] = 1
    elif "" not in versions:
        if any(node.domain == "" for node in nodes):
            raise ModelError("The model does not say which version of ONNX's operators (opset) it uses.")
        versions[""] = defs.onnx_opset_version()
    newest = defs.onnx_opset_version()
    if not 1 <= versions[""] <= newest:
        raise ModelError(
            f"The model uses opset {versions['']}; the onnx package installed knows 1 to {newest}: "
            "upgrade onnx or export with an older opset."
        )
    del proto.opset_import[:]
    proto.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())


def inline_functions(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its own functions' bodies in place of their calls. Raises ModelError: recursion."""
    if not proto.functions:
        return proto
    try:
        inlined = onnx.inliner.inline_local_functions(proto)
    except Exception as error:  # C++ exceptions of several unrelated Python types
        raise ModelError(f"The functions in the model cannot be inlined: {one_line(error)}.") from error
    if inlined.functions:
        names = ", ".join(repr(function.name) for function in inlined.functions)
        raise ModelError(f"The functions {names} in the model cannot be inlined.")
    return inlined


def check_model(proto: onnx.ModelProto) -> None:
    """ONNX's own checker, on the light model. Raises ModelError with its first complaint.

    Inputs and outputs without a shape, which it would refuse, are none of its business: the user gives the
    former, the latter are inferred.
    """
    for node in all_nodes(proto.graph):
        for attribute in node.attribute:
            least = _LEAST.get((node.op_type, attribute.name)) if not node.domain else None
            if least is not None and attribute.i < least:
                raise ModelError(f"{label(node)} has {attribute.name} {attribute.i}, which is less than {least}.")
    checked = onnx.ModelProto()
    checked.CopyFrom(proto)
    for value in (*checked.graph.input, *checked.graph.output):
        if not value.type.WhichOneof("value"):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(checked)
    except Exception as error:  # ValidationError, and ValueError or RuntimeError from inside
        raise ModelError(f"The model is not valid ONNX: {one_line(error)}.") from error
