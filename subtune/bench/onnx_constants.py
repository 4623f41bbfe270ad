"""Shape arithmetic of an ONNX file as constants: exporters compute shapes in the graph, tracers cannot follow."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_ELEMENTS = 1024
"""Of a value that is computed here; shapes are far smaller, weights larger."""


def fold_shapes(model: Any) -> None:
    """Replace, in place, every node that depends on constants and on known shapes only by its value."""
    import onnx

    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {
        value.name: [dim.dim_value if dim.HasField("dim_value") else -1 for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.input)
        if value.type.tensor_type.HasField("shape")
    }
    known = {
        init.name: onnx.numpy_helper.to_array(init)
        for init in model.graph.initializer
        if np.prod(init.dims) <= _MOST_ELEMENTS
    }
    outputs = {value.name for value in model.graph.output}
    kept, folded = [], {}
    for node in model.graph.node:
        values = None
        if not outputs & set(node.output) and not any(a.HasField("g") for a in node.attribute):
            values = _values(node, known, shapes, model.opset_import)
        if values is None:
            kept.append(node)
            continue
        folded.update(values)
        known.update(values)
    used = {name for node in kept for name in node.input}
    del model.graph.node[:]
    model.graph.node.extend(kept)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value, name) for name, value in folded.items() if name in used
    )


def _values(node: Any, known: dict[str, np.ndarray], shapes: dict[str, list[int]], opsets: Any) -> dict | None:
    """The node's outputs by name; None if they are not known, or large."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Shape" and not node.attribute:
        shape = shapes.get(node.input[0])
        return None if shape is None or min(shape, default=0) < 0 else {node.output[0]: np.array(shape, np.int64)}
    given = [name for name in dict.fromkeys(node.input) if name]
    if not all(name in known for name in given) or any(
        a.t.dims and np.prod(a.t.dims) > _MOST_ELEMENTS for a in node.attribute
    ):
        return None
    specs = [
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(known[n].dtype), known[n].shape)
        for n in given
    ]
    names = [name for name in node.output if name]
    results = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.UNDEFINED, None) for n in names]
    alone = onnx.helper.make_model(onnx.helper.make_graph([node], "node", specs, results), opset_imports=opsets)
    values = [np.asarray(v) for v in ReferenceEvaluator(alone).run(None, {name: known[name] for name in given})]
    return None if any(v.size > _MOST_ELEMENTS for v in values) else dict(zip(names, values, strict=True))
