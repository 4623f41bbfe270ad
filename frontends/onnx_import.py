"""The prepared graph -> Relax: a walk over the nodes with TVM's converters, each checked as it is made.

TVM's own walk (`from_onnx`) reads every weight through a checker first, does not say which node failed, and
leaves expressions unbound, so that they have no names. Here each node's outputs are bound under their ONNX
names, and their types are compared with what ONNX infers: a converter that gets a shape or a dtype wrong is
found at its node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from subtune.errors import ModelError, ShapeError, UnsupportedOpsError
from subtune.frontends.onnx_file import OnnxModel
from subtune.frontends.onnx_graph import label
from subtune.frontends.onnx_shapes import one_line, spec_of
from subtune.frontends.onnx_support import converters, opset_of
from subtune.frontends.onnx_weights import Weight, read_tensor
from subtune.tensorspec import TensorSpec

# Relax handles both as shapes in places; everything else wants tensors.
# fmt: off
_SHAPE_OPS = frozenset({
    "Cast", "CastLike", "Concat", "ConstantOfShape", "Equal", "Expand", "Gather", "Reshape", "Resize",
    "Shape", "Slice", "Squeeze", "Where",
})
# fmt: on

_MAX_FAILURES_SHOWN = 10


def import_graph(model: OnnxModel, inputs: Sequence[TensorSpec]) -> tuple[tvm.IRModule, tuple[TensorSpec, ...]]:
    """The Relax module and the outputs of a model whose light protobuf is sorted, static and inferred.

    Raises:
        UnsupportedOpsError: all nodes that a converter refuses for their attributes or types, at once where they do
            not depend on one another.
        ShapeError: a value whose shape depends on data. ModelError: a converter fails otherwise.
    """
    graph = model.proto.graph
    specs = {value.name: spec_of(value) for value in (*graph.value_info, *graph.output)}
    # TVM's converters read no more of an importer than this mapping.
    attributes = onnx_frontend.ONNXGraphImporter(None, None)
    values: dict[str, Any] = _Values(graph, model.weights)
    params = [relax.Var(_identifier(s.name), relax.TensorType(s.shape, s.dtype)) for s in inputs]
    values.update({spec.name: param for spec, param in zip(inputs, params, strict=True)})
    bb = relax.BlockBuilder()
    opset = opset_of(model.proto)
    failures: list[ModelError] = []
    with bb.function("main", params=params):
        with bb.dataflow():
            for node in graph.node:
                attrs = attributes._parse_attr(node.attribute)
                try:
                    values.update(_convert(bb, node, values, attrs, opset, specs))
                except ModelError as error:
                    failures.append(error)
                    if not _stand_in(node, values, specs):
                        break
            # The builder is closed in any case: TVM complains on stderr about one that is thrown away open.
            results = [] if failures else [_as_tensor(values[output.name]) for output in graph.output]
            result = bb.emit_output(results[0] if len(results) == 1 else relax.Tuple(results))
        bb.emit_func_output(result)
    if failures:
        raise _all_in_one(failures)
    return bb.get(), tuple(_output_spec(*pair) for pair in zip(graph.output, results, strict=True))


def _output_spec(value: onnx.ValueInfoProto, expr: Any) -> TensorSpec:
    shape, dtype = _type_of(expr)
    assert shape is not None, f"output {value.name} has passed _checked"
    return TensorSpec(value.name, shape, dtype)


def _stand_in(node: onnx.NodeProto, values: dict[str, Any], specs: Mapping[str, TensorSpec | None]) -> bool:
    """Variables in place of a failed node's outputs, to find all failures; False: types unknown."""
    for name in filter(None, node.output):
        spec = specs.get(name)
        if spec is None:
            return False
        values[name] = relax.Var(_identifier(name), relax.TensorType(spec.shape, spec.dtype))
    return True


def _all_in_one(failures: Sequence[ModelError]) -> ModelError:
    """One error for all nodes that failed, of the kind of the first."""
    if len(failures) == 1:
        return failures[0]
    shown = [str(error).rstrip(".") for error in failures[:_MAX_FAILURES_SHOWN]]
    if len(failures) > len(shown):
        shown.append(f"and {len(failures) - len(shown)} more nodes")
    error = type(failures[0])("; ".join(shown) + ".")
    error.__cause__ = failures[0].__cause__
    return error


class _Values(dict[str, Any]):
    """ONNX value -> Relax expression; weights become constants when first used, with one copy."""

    def __init__(self, graph: onnx.GraphProto, weights: Mapping[str, Weight]) -> None:
        super().__init__()
        self._small = {tensor.name: tensor for tensor in graph.initializer}
        self._weights = weights

    def __missing__(self, name: str) -> Any:
        weight = self._weights.get(name)
        array = weight.read() if weight is not None else read_tensor(self._small[name], None)
        constant = relax.const(tvm.runtime.tensor(np.asarray(array)))
        self[name] = constant
        return constant


def _convert(
    bb: relax.BlockBuilder,
    node: onnx.NodeProto,
    values: dict[str, Any],
    attributes: dict[str, Any],
    opset: int,
    specs: Mapping[str, TensorSpec | None],
) -> dict[str, Any]:
    """One node through TVM's converter: its outputs by name, calls bound to variables named after them.

    Raises ModelError: the converter fails, or makes something of another type than ONNX says.
    """
    inputs = onnx_frontend.onnx_input(values[name] if name else None for name in node.input)
    if node.op_type not in _SHAPE_OPS:
        inputs = onnx_frontend.onnx_input(None if v is None else _as_tensor(v) for v in inputs)
    attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
    try:
        converter = converters()[node.op_type].get_converter(opset)
        made = converter(bb, inputs, attributes, [values, {}])
        made = bb.normalize(made) if isinstance(made, relax.Expr) else made
        outputs = _bound(bb, node, made)
    except (MemoryError, ModelError):
        raise
    except Exception as error:  # the converters raise whatever Python, TVM or numpy raises
        if any(specs.get(name) is None for name in node.output if name):
            raise _dynamic(node) from error
        kind = UnsupportedOpsError if _is_refusal(error) else ModelError
        reason = one_line(error)
        if isinstance(error, KeyError | IndexError | AttributeError | TypeError | AssertionError):
            reason = f"TVM's converter does not handle this form of it ({type(error).__name__}: {reason})"
        raise kind(f"Node {label(node)} cannot be imported: {reason}.") from error
    named = {name: value for name, value in zip(node.output, outputs, strict=False) if name}
    return {name: _checked(node, name, value, specs.get(name)) for name, value in named.items()}


def _bound(bb: relax.BlockBuilder, node: onnx.NodeProto, made: Any) -> list[Any]:
    if isinstance(made, relax.Tuple):
        items = list(made.fields)
    elif isinstance(made, relax.Expr) and isinstance(made.ty, relax.TupleType):
        made = bb.emit(made) if not isinstance(made, relax.Var) else made
        items = [relax.TupleGetItem(made, index) for index in range(len(made.ty.fields))]
    else:
        items = [made]
    wanted = len(node.output)
    if len(items) < wanted:
        raise ValueError(f"the converter gives {len(items)} of its {wanted} outputs")
    return [
        bb.emit(item, name_hint=_identifier(name)) if isinstance(item, relax.Call | relax.TupleGetItem) else item
        for item, name in zip(items, node.output, strict=False)
    ]


def _checked(node: onnx.NodeProto, name: str, value: Any, spec: TensorSpec | None) -> Any:
    """The value, if its type is static and the one that ONNX infers."""
    shape, dtype = _type_of(value)
    if shape is None:
        raise _dynamic(node)
    if spec is not None and (shape != spec.shape or dtype != spec.dtype):
        raise ModelError(
            f"Node {label(node)} cannot be imported: its output {name!r} would be {dtype}{list(shape)}, "
            f"and ONNX says {spec.dtype}{list(spec.shape)}."
        )
    return value


def _type_of(value: Any) -> tuple[tuple[int, ...] | None, str]:
    """Static shape (None if dynamic) and dtype of an expression; a Relax shape counts as an int64 vector."""
    kind = value.ty
    if isinstance(kind, relax.ShapeType):
        static = kind.values is not None and all(isinstance(dim, int | tvm.tirx.IntImm) for dim in kind.values)
        return ((kind.ndim,) if static else None), "int64"
    if not isinstance(kind, relax.TensorType) or kind.shape is None:
        return None, "unknown"
    dims = getattr(kind.shape, "values", None)
    if dims is None or not all(isinstance(dim, int | tvm.tirx.IntImm) for dim in dims):
        return None, str(kind.dtype)
    return tuple(int(dim) for dim in dims), str(kind.dtype)


def _as_tensor(value: Any) -> Any:
    """A Relax shape as the int64 tensor that it is in ONNX."""
    if isinstance(value, relax.ShapeExpr):
        return relax.const(np.array([int(dim) for dim in value.values], "int64"))
    return value


def _dynamic(node: onnx.NodeProto) -> ShapeError:
    return ShapeError(
        f"The output of node {label(node)} has a shape that depends on data at run time, which is not "
        "supported: every shape must be known when the model is compiled."
    )


def _is_refusal(error: Exception) -> bool:
    """Whether a converter says that it does not support something, in one of the ways that TVM has."""
    refusals = (NotImplementedError, tvm.error.OpNotImplemented, tvm.error.OpAttributeUnImplemented)
    text = str(error).lower()
    return isinstance(error, refusals) or "not support" in text or "unsupported" in text or "only support" in text


def _identifier(name: str) -> str:
    """An ONNX name as a Relax variable's name: letters, digits and underscores."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text and not text[0].isdigit() else f"v{text}"
