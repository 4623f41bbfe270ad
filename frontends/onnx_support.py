"""Which operators can be imported: all that cannot are listed at once, before anything is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import onnx
import onnx.inliner
import onnx.version_converter
from onnx import defs, helper
from tvm.relax.frontend.onnx import onnx_frontend

from subtune.errors import ModelError, UnsupportedOpsError
from subtune.frontends.onnx_file import OnnxModel
from subtune.frontends.onnx_graph import all_nodes, qualified_op
from subtune.frontends.onnx_shapes import one_line

OLDEST_OPSET = 7
"""Before it, broadcasting was an attribute and BatchNormalization trained; older models are converted."""

# TVM's importer knows these by name only; in any other domain the name may mean something else.
_MICROSOFT_OPS = frozenset({"FastGelu", "BiasGelu", "SkipLayerNormalization", "EmbedLayerNormalization"})

# TVM converts some of these into tuples of tensors of changing length, which have no place in a static module.
_NOT_STATIC = {
    "If": "its condition is known only at run time",
    "Loop": "loops are not supported",
    "Scan": "loops are not supported",
    "SequenceMap": "sequences are not supported",
    "SequenceConstruct": "sequences are not supported",
    "SequenceEmpty": "sequences are not supported",
    "SequenceErase": "sequences are not supported",
    "SequenceInsert": "sequences are not supported",
    "SequenceLength": "sequences are not supported",
    "SequenceAt": "sequences are not supported",
    "ConcatFromSequence": "sequences are not supported",
    "SplitToSequence": "sequences are not supported",
    "Optional": "optional values are not supported",
    "OptionalHasElement": "optional values are not supported",
    "OptionalGetElement": "optional values are not supported",
}

_MAX_NODES_SHOWN = 5


@cache
def converters() -> Mapping[str, Any]:
    """Op type -> TVM's converter class."""
    return onnx_frontend._get_convert_map()


def check_ops(graph: onnx.GraphProto, branches_decided: bool) -> None:
    """Raises UnsupportedOpsError: every op of the graph and its subgraphs without a converter, with its nodes.

    Args:
        branches_decided: False while an If may still prove constant: it and its branches are passed over.
    """
    problems: dict[str, list[str]] = {}
    for node in all_nodes(graph) if branches_decided else graph.node:
        if node.op_type == "If" and not branches_decided:
            continue
        reason = _why_not(node)
        if reason is not None:
            key = qualified_op(node) + (f" ({reason})" if reason else "")
            problems.setdefault(key, []).append(node.name)
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


def _why_not(node: onnx.NodeProto) -> str | None:
    """None: it can be imported; "" or a reason: it cannot."""
    if node.domain == "com.microsoft":
        return None if node.op_type in _MICROSOFT_OPS else ""
    if node.domain:
        return ""
    if node.op_type in _NOT_STATIC:
        return _NOT_STATIC[node.op_type]
    if node.op_type not in converters() or node.op_type in _MICROSOFT_OPS:
        return ""
    return None


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


def upgrade(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model at an opset where TVM's converters mean what its nodes say; the same object if it is there already.

    Raises ModelError: the conversion fails.
    """
    opset = opset_of(proto)
    wanted = max([OLDEST_OPSET, *(_needed_opset(node, opset) for node in all_nodes(proto.graph))])
    if wanted <= opset:
        return proto
    try:
        return onnx.version_converter.convert_version(proto, wanted)
    except Exception as error:  # C++ exceptions of several unrelated Python types
        raise ModelError(
            f"The model uses opset {opset}, and its conversion to opset {wanted} failed: {one_line(error)}; "
            f"export it with opset {wanted} or newer."
        ) from error


def _needed_opset(node: onnx.NodeProto, opset: int) -> int:
    """The lowest opset from which the converter that TVM would choose reads this node's inputs and attributes right.

    TVM falls back to its oldest converter for models older than that; this is wrong where attributes have
    become inputs since, or inputs have moved (Slice before 10, Resize before 11, Upsample before 9).
    """
    converter = converters().get(node.op_type)
    if converter is None or node.domain or not defs.has(node.op_type, opset, ""):
        return opset
    oldest = min((int(name.removeprefix("_impl_v")) for name in dir(converter) if "_impl_v" in name), default=0)
    if oldest <= opset:
        return opset
    schema, then = defs.get_schema(node.op_type, opset, ""), defs.get_schema(node.op_type, oldest, "")
    if schema.since_version == then.since_version:
        return opset
    moved = any(a.name != b.name for a, b, _ in zip(schema.inputs, then.inputs, node.input, strict=False))
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    gone = [a for a in node.attribute if a.name not in then.attributes and not _is_default(a, defaults.get(a.name))]
    return oldest if moved or gone or len(node.input) < then.min_input else opset


def _is_default(attribute: onnx.AttributeProto, default: onnx.AttributeProto | None) -> bool:
    """Whether the node says only what its operator means anyway."""
    if default is None or default.type == onnx.AttributeProto.UNDEFINED:
        return False
    return bool(helper.get_attribute_value(attribute) == helper.get_attribute_value(default))


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
