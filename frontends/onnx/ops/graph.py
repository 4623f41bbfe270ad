"""Consistency of an ONNX graph, and how messages name its parts."""

from __future__ import annotations

from typing import Any

import onnx

from subtune.core.errors import ModelError
from subtune.core.tensor_spec import NARROW
from subtune.frontends.onnx.ops.narrow import Narrow
from subtune.frontends.onnx.ops.node import Expr, dtype, shape


def check_order(graph: onnx.GraphProto, outer: frozenset[str] = frozenset()) -> None:
    """Raises ModelError unless every value is computed before it is read."""
    known = set(outer) | {t.name for t in graph.initializer} | {i.name for i in graph.input}
    known |= {s.values.name for s in graph.sparse_initializer}
    for proto in graph.node:
        for name in proto.input:
            if name and name not in known:
                raise ModelError(f"{title(proto)} reads '{name}', which nothing before it computes")
        for attribute in proto.attribute:
            if attribute.HasField("g"):
                check_order(attribute.g, frozenset(known))
        known.update(proto.output)
    for info in graph.output:
        if info.name not in known:
            raise ModelError(f"no node computes the graph's output '{info.name}'")


def read_names(graph: onnx.GraphProto) -> set[str]:
    """The values that something reads, here or in a graph inside: to ask for a shape is not to read."""
    names = {info.name for info in graph.output}
    for proto in graph.node:
        if proto.domain or proto.op_type not in ("Shape", "Size"):
            names.update(proto.input)
        for attribute in proto.attribute:
            if attribute.HasField("g"):
                names |= read_names(attribute.g)
    return names


def disagreement(info: onnx.ValueInfoProto, value: Expr | Narrow) -> str | None:
    """How the output's declared dtype and shape differ from those of `value`; None if they agree."""
    declared = info.type.tensor_type
    name, value = (value.of, value.expr) if isinstance(value, Narrow) else (dtype(value), value)
    got = f"{name}{list(shape(value))}"
    if name in NARROW and not declared.elem_type:
        return f"output '{info.name}' is {got}, and the model does not declare its type"
    if declared.elem_type and str(onnx_numpy(info)) != name:
        return f"output '{info.name}' is declared as {onnx_numpy(info)} but is {got}"
    if not declared.HasField("shape"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else None for d in declared.shape.dim]
    same_rank = len(dims) == len(shape(value))
    if same_rank and all(d in (None, s) for d, s in zip(dims, shape(value), strict=True)):
        return None
    return f"output '{info.name}' is declared with shape {dims} but is {got}"


def onnx_numpy(info: onnx.ValueInfoProto) -> Any:
    """The numpy dtype of a graph input or output."""
    return onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)


def title(proto: onnx.NodeProto) -> str:
    domain = f"{proto.domain}." if proto.domain not in ("", "ai.onnx") else ""
    return f"{domain}{proto.op_type} node '{proto.name or (proto.output[0] if proto.output else '?')}'"
