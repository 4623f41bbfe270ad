"""Operators that ONNX defines as a function of other operators: their bodies, ready to be imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from onnx import defs

from subtune.frontends.onnx.ops.node import Refused, dtype, shape


class UseBody(Exception):
    """A converter that does not handle this form of its operator asks for the function body instead."""


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """An attribute as a Python value; strings decoded."""
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if attribute.type == onnx.AttributeProto.STRINGS:
        return [v.decode("utf-8", errors="replace") for v in value]
    return list(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value


def _schema(domain: str, op: str, opset: int) -> Any:
    if not defs.has(op, domain):
        return None
    try:
        return defs.get_schema(op, opset, domain)
    except defs.SchemaError:
        return None


def is_function(domain: str, op: str, opset: int) -> bool:
    """Whether ONNX defines the operator by other operators."""
    schema = _schema(domain, op, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def body_of(proto: onnx.NodeProto, domain: str, opset: int, inputs: tuple[Any, ...]) -> onnx.FunctionProto:
    """The body of the operator's definition for inputs of these shapes and dtypes.

    Raises:
        Refused: the operator is no function, or has no body for this opset or these types.
    """
    schema = _schema(domain, proto.op_type, opset)
    if schema is None:
        raise Refused("is not supported")
    if schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
        types = [_type_of(value) for value in inputs]
        for version in sorted(versions, reverse=True):
            data = schema.get_context_dependent_function_with_opset_version(version, proto.SerializeToString(), types)
            if data:
                return _parsed(data, opset)
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= opset]
        for version in sorted(versions, reverse=True):
            data = schema.get_function_with_opset_version(version)
            if data:
                return _parsed(data, opset)
    raise Refused("is not supported")


def _parsed(data: bytes, opset: int) -> onnx.FunctionProto:
    body = onnx.FunctionProto.FromString(data)
    if not body.opset_import:
        body.opset_import.append(onnx.helper.make_opsetid("", opset))
    return body


def _type_of(value: Any) -> bytes:
    if value is None:
        return onnx.TypeProto().SerializeToString()
    if isinstance(value, tuple):
        raise Refused("takes a sequence, which is not supported here")
    elem = onnx.helper.np_dtype_to_tensor_dtype(_numpy(dtype(value)))
    return onnx.helper.make_tensor_type_proto(elem, shape(value)).SerializeToString()


def _numpy(name: str) -> Any:
    from subtune.frontends.onnx.ops.node import numpy_dtype

    return numpy_dtype(name)


def defaults_of(domain: str, op: str, opset: int) -> dict[str, onnx.AttributeProto]:
    """The default values of the operator's attributes."""
    schema = _schema(domain, op, opset)
    assert schema is not None, "asked for an operator whose body was found"
    return {
        name: attribute.default_value
        for name, attribute in schema.attributes.items()
        if attribute.default_value.type != onnx.AttributeProto.UNDEFINED
    }


def bound_nodes(body: onnx.FunctionProto, given: Mapping[str, onnx.AttributeProto]) -> Iterator[onnx.NodeProto]:
    """The body's nodes with references to the caller's attributes replaced; those not given are left out."""
    for node in body.node:
        if not _refers(node):
            yield node
            continue
        bound = onnx.NodeProto()
        bound.CopyFrom(node)
        _bind(bound, given)
        yield bound


def _refers(node: onnx.NodeProto) -> bool:
    return any(a.ref_attr_name or (a.HasField("g") and any(map(_refers, a.g.node))) for a in node.attribute)


def _bind(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> None:
    attributes = list(node.attribute)
    del node.attribute[:]
    for attribute in attributes:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                _bind(inner, given)
        if not attribute.ref_attr_name:
            node.attribute.append(attribute)
        elif attribute.ref_attr_name in given:
            value = onnx.AttributeProto()
            value.CopyFrom(given[attribute.ref_attr_name])
            value.name = attribute.name
            node.attribute.append(value)
