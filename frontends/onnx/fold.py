"""Shape arithmetic and constant conditions, evaluated at import: the Shape-Gather-Concat-Reshape chains of exporters.

With static inputs a `Shape` is a constant, and so is what is computed from it. TVM's importer follows such
chains only in part, and `If` with a constant condition not at all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from subtune.frontends.onnx.graph import subgraphs
from subtune.frontends.onnx.shapes import spec_of
from subtune.frontends.onnx.weights import read_tensor

MAX_ELEMENTS = 4096
"""Larger results stay computed at run time: they are data, not shapes."""

# What exporters compute shapes, indices and conditions with; quantisation is left alone on purpose, since
# weights must reach the tuner as the integers they are.
# fmt: off
FOLDABLE = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "Constant", "ConstantOfShape", "Div",
    "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater",
    "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero",
    "Not", "Or", "Pow", "Range", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape",
    "ScatterElements", "ScatterND", "Shape", "Size", "Slice", "Split", "Squeeze", "Sub", "Tile",
    "Transpose", "Trilu", "Unsqueeze", "Where", "Xor",
})
# fmt: on


def fold(inferred: onnx.ModelProto) -> bool:
    """Replace what is constant by initialisers and what is decided by its branch, in place, once over the graph.

    Args:
        inferred: the light model after shape inference, in topological order. Run inference again if True is
            returned: more may be known.
    """
    graph = inferred.graph
    specs = {v.name: spec_of(v) for v in (*graph.input, *graph.value_info, *graph.output)}
    known: dict[str, np.ndarray] = {}
    for tensor in graph.initializer:
        if math.prod(tensor.dims) <= MAX_ELEMENTS:
            known[tensor.name] = read_tensor(tensor, None)
    kept: list[onnx.NodeProto] = []
    computed: dict[str, np.ndarray] = {}
    changed = False
    for node in graph.node:
        if node.op_type == "If" and not node.domain and node.input[0] in known:
            branch = "then_branch" if bool(known[node.input[0]].reshape(-1)[0]) else "else_branch"
            kept.extend(_inline_branch(node, branch, graph))
            changed = True
            continue
        values = _evaluate(node, known, specs, inferred)
        if values is None:
            kept.append(node)
            continue
        known.update(values)
        computed.update(values)
        changed = True
    if not changed:
        return False
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in _used_names(node)} | {output.name for output in graph.output}
    graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        for name, value in computed.items()
        if name in used
    )
    return True


def _evaluate(
    node: onnx.NodeProto,
    known: Mapping[str, np.ndarray],
    specs: Mapping[str, object],
    model: onnx.ModelProto,
) -> dict[str, np.ndarray] | None:
    """The node's outputs if they are constants worth having now; None otherwise."""
    if node.domain or node.op_type not in FOLDABLE:
        return None
    if node.op_type == "Constant" and node.attribute[0].name == "value":
        return {node.output[0]: read_tensor(node.attribute[0].t, None)}
    inputs = [name for name in node.input if name]
    if node.op_type in ("Shape", "Size") and inputs and inputs[0] not in known:
        shape = getattr(specs.get(inputs[0]), "shape", None)
        if shape is None:
            return None
        # Shape and Size read no values: a dummy of the right shape without memory behind it does.
        feeds = {inputs[0]: np.broadcast_to(np.float32(0), shape)}
    elif all(name in known for name in inputs):
        feeds = {name: known[name] for name in inputs}
    else:
        return None
    outputs = [name for name in node.output if name]
    for name in outputs:
        shape = getattr(specs.get(name), "shape", None)
        if shape is not None and math.prod(shape) > MAX_ELEMENTS:
            return None
    if any(spec is None for spec in (specs.get(name) for name in outputs)) and not _surely_small(node, feeds):
        return None
    graph = onnx.helper.make_graph(
        [node],
        "fold",
        [onnx.ValueInfoProto(name=n) for n in feeds],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    single = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        results = ReferenceEvaluator(single).run(None, feeds)
    except Exception:  # the evaluator refuses in many ways; the node then stays, and the importer judges it
        return None
    if not all(isinstance(result, np.ndarray | np.generic) for result in results):
        return None
    return {name: np.asarray(result) for name, result in zip(outputs, results, strict=True)}


def _surely_small(node: onnx.NodeProto, feeds: Mapping[str, np.ndarray]) -> bool:
    """Whether a result of unknown shape cannot be much larger than the inputs."""
    if node.op_type in ("ConstantOfShape", "Expand", "Range", "Tile"):
        return False
    return sum(value.size for value in feeds.values()) <= MAX_ELEMENTS


def _used_names(node: onnx.NodeProto) -> set[str]:
    """The values that a node or anything in its subgraphs reads."""
    names = {name for name in node.input if name}
    for subgraph in subgraphs(node):
        names |= {output.name for output in subgraph.output}
        for inner in subgraph.node:
            names |= _used_names(inner)
    return names


def _inline_branch(node: onnx.NodeProto, which: str, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of the branch taken, renamed apart from the graph's own, its outputs under the If's names."""
    branch = next(attribute.g for attribute in node.attribute if attribute.name == which)
    # Outputs are unique in the graph; node names need not be.
    prefix = f"{next(name for name in node.output if name)}/{which}/"
    renamed: dict[str, str] = {}
    for tensor in branch.initializer:
        renamed[tensor.name] = prefix + tensor.name
        initializer = graph.initializer.add()
        initializer.CopyFrom(tensor)
        initializer.name = renamed[tensor.name]
    for inner in branch.node:
        renamed.update({name: prefix + name for name in inner.output if name})
    nodes = []
    for inner in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        copy.name = prefix + inner.name
        _rename(copy, renamed)
        nodes.append(copy)
    for inner_output, outer_name in zip(branch.output, node.output, strict=True):
        if outer_name:
            name = renamed.get(inner_output.name, inner_output.name)
            nodes.append(onnx.helper.make_node("Identity", [name], [outer_name], name=f"{node.name}/{outer_name}"))
    return nodes


def _rename(node: onnx.NodeProto, renamed: Mapping[str, str]) -> None:
    """Rename the values of a node in place; inside its subgraphs, what they do not define themselves."""
    node.input[:] = [renamed.get(name, name) for name in node.input]
    node.output[:] = [renamed.get(name, name) for name in node.output]
    for subgraph in subgraphs(node):
        own = {name for inner in subgraph.node for name in inner.output} | {t.name for t in subgraph.initializer}
        own |= {value.name for value in subgraph.input}
        free = {old: new for old, new in renamed.items() if old not in own}
        for inner in subgraph.node:
            _rename(inner, free)
        for output in subgraph.output:
            output.name = free.get(output.name, output.name)
