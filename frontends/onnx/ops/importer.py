"""ONNX graph -> Relax module, one node at a time, all shapes static.

Shape arithmetic is folded while walking (`shape_arithmetic`). An operator without a converter whose ONNX definition is
a function of other operators is imported as that function's body (`functions.py`). Every node that cannot be
imported is collected; one error lists them all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from subtune.core.errors import UnsupportedOpsError
from subtune.core.names import Names
from subtune.frontends.one_line import one_line
from subtune.frontends.onnx.ops import boundary, functions, narrow
from subtune.frontends.onnx.ops.cast import is_narrow_cast
from subtune.frontends.onnx.ops.control import CONTROL
from subtune.frontends.onnx.ops.converters import CONVERTERS
from subtune.frontends.onnx.ops.graph import check_order, disagreement, title
from subtune.frontends.onnx.ops.halves import narrowed, widened
from subtune.frontends.onnx.ops.node import (
    ConstantWanted,
    Expr,
    Node,
    Refused,
    array_const,
    dtype,
    known_array,
    shape,
)
from subtune.frontends.onnx.ops.signature import POISON, Signature
from subtune.frontends.onnx.ops.supported import reason
from subtune.frontends.shape_arithmetic import OPERATORS, evaluate, known_shape

logger = logging.getLogger(__name__)

_MAX_LISTED = 20


class ConstantInputsError(UnsupportedOpsError):
    """Graph inputs decide a shape or an attribute inside the graph; `names` says which have to be bound."""

    def __init__(self, message: str, names: frozenset[str]) -> None:
        super().__init__(message)
        self.names = names


def _folded(node: Node) -> tuple[np.ndarray, ...] | None:
    """The node's outputs if they are known now, else None."""
    if node.domain or not node.inputs or any(isinstance(value, tuple) for value in node.inputs):
        return None
    if node.op in ("Shape", "Size"):
        arrays: list[np.ndarray | None] = [known_shape(shape(node.x))]
    else:
        arrays = [None if value is None else known_array(value, node.arrays) for value in node.inputs]
        if any(array is None and value is not None for array, value in zip(arrays, node.inputs, strict=True)):
            return None
    return evaluate(node.op, arrays, node.attrs, node.opset, len(node.wanted))


def returned(outputs: Sequence[Expr]) -> tuple[Expr, str]:
    """What `main` returns, and its name: that of the operator that made it, where it is one tensor."""
    if len(outputs) != 1:
        return relax.Tuple(outputs), ""
    return outputs[0], outputs[0].name if isinstance(outputs[0], relax.Var) else ""


class _Reported(Exception):
    """A body could not be imported; the reasons are already collected."""


def import_onnx(
    model: onnx.ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    constants: Mapping[str, np.ndarray] | None = None,
    keep_params: bool = False,
) -> tvm.IRModule:
    """Imports `model` as one Relax function `main`.

    Args:
        shapes: input name -> static shape, for the inputs whose shape in the model is unknown or symbolic.
        constants: input name -> value: these inputs become constants and are no arguments of `main`.
        keep_params: weights become arguments of `main` after the inputs, and the function attribute "params" holds
            their values in that order; otherwise they are constants in the module.

    The function attribute "num_input" counts the inputs proper. Argument names are the ONNX names made
    identifiers; their order is the model's.

    Raises:
        ShapeError: an input's shape is unknown or symbolic and `shapes` does not give it.
        ConstantInputsError: an operator needs the value of a graph input at compile time.
        UnsupportedOpsError: operators, attributes or dtypes that are not supported; all are listed.
        ModelError: the graph is inconsistent.
    """
    return _Importer(model, dict(shapes or {}), dict(constants or {}), keep_params).run()


class _Importer:
    """The state of one import."""

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: dict[str, Sequence[int]],
        constants: dict[str, np.ndarray],
        keep_params: bool,
    ) -> None:
        self._model = model
        self._keep_params = keep_params
        self._local = {(f.domain, f.name): f for f in model.functions}
        self._bb = relax.BlockBuilder()
        self._problems: list[str] = []
        self._signature = Signature(shapes, constants, self._problems)
        self._arrays, self._origins = self._signature.arrays, self._signature.origins
        self._wanted_inputs: set[str] = set()
        self._names = Names()

    def run(self) -> tvm.IRModule:
        graph = self._model.graph
        opsets = {entry.domain: entry.version for entry in self._model.opset_import}
        opsets.setdefault("", opsets.get("ai.onnx", 1))
        values: dict[str, Any] = {}
        check_order(graph)
        self._signature.initialisers(graph, values, self._keep_params)
        inputs = self._signature.inputs(graph, values)
        arguments = inputs + [var for var, _ in self._signature.params]
        with self._bb.function("main", params=arguments):
            with self._bb.dataflow():
                self._enter(values)
                self._walk(graph.node, values, opsets)
                outputs = self._outputs(graph, values)
                result = self._bb.emit_output(*returned(outputs))
            self._bb.emit_func_output(result)
        self._raise_collected()
        mod = self._bb.get()
        attrs: dict[str, Any] = {"num_input": len(inputs)}
        if self._keep_params:
            attrs["params"] = [tvm.runtime.tensor(array) for _, array in self._signature.params]
        mod["main"] = mod["main"].with_attrs(attrs)
        named: tvm.IRModule = self._names.noted(mod)
        return named

    def _enter(self, values: dict[str, Any]) -> None:
        """Replaces the bits of narrow inputs by what they stand for."""
        for name, value in values.items():
            if isinstance(value, narrow.Narrow) and self._origins_of(value.expr):
                made = boundary.entered(self._bb, value.expr, value.of, self._names.hint(name))
                self._origins[made.expr] = self._origins[value.expr]
                values[name] = made

    def _outputs(self, graph: onnx.GraphProto, values: dict[str, Any]) -> list[Expr]:
        """The graph's outputs; none if something could not be imported."""
        for info in graph.output:
            if isinstance(values.get(info.name), tuple):
                self._problems.append(f"output '{info.name}' is a sequence, which is not supported")
        if self._problems or self._wanted_inputs:
            return []
        differ = [disagreement(info, values[info.name]) for info in graph.output]
        self._problems += [text for text in differ if text]
        return [self._returned(info.name, values[info.name]) for info in graph.output]

    def _returned(self, name: str, value: Any) -> Expr:
        """An empty constant cannot be stored in a module: it is made at run time."""
        if isinstance(value, narrow.Narrow):
            value = boundary.left(self._bb, value, self._names.hint(name))
        if 0 in shape(value):
            return self._bb.emit(relax.op.zeros(shape(value), dtype(value)))
        return value

    def _raise_collected(self) -> None:
        """Raises what the walk has collected, after the builder's scopes are closed."""
        if self._problems:
            listed = self._problems[:_MAX_LISTED]
            more = len(self._problems) - len(listed)
            text = "; ".join(listed) + (f"; and {more} more" if more else "")
            raise UnsupportedOpsError(f"The model cannot be imported: {text}.")
        if self._wanted_inputs:
            names = ", ".join(f"'{n}'" for n in sorted(self._wanted_inputs))
            raise ConstantInputsError(
                f"The value of input {names} decides shapes inside the model: make it an initialiser.",
                frozenset(self._wanted_inputs),
            )

    def _walk(self, nodes: Iterable[onnx.NodeProto], values: dict[str, Any], opsets: Mapping[str, int]) -> None:
        """Imports nodes in order; `values` gains their outputs."""
        for proto in nodes:
            inputs = tuple(values[name] if name else None for name in proto.input)
            try:
                outputs = self._node(proto, inputs, values, opsets)
            except Refused as e:
                self._problems.append(f"{title(proto)} {e}")
                outputs = (POISON,) * len(proto.output)
            except _Reported:
                outputs = (POISON,) * len(proto.output)
            except ConstantWanted as e:
                origins = self._origins.get(e.expr, frozenset())
                self._wanted_inputs |= origins
                if not origins:
                    self._problems.append(f"{title(proto)} needs {e.what} at compile time")
                outputs = (POISON,) * len(proto.output)
            except Exception as e:  # what Python and TVM say of attributes and shapes that do not fit has no one type
                logger.debug("%s", title(proto), exc_info=True)
                self._problems.append(f"{title(proto)} does not fit its inputs or attributes: {one_line(e)}")
                outputs = (POISON,) * len(proto.output)
            for name, value in zip(proto.output, outputs, strict=False):
                if name:
                    values[name] = value

    def _node(
        self,
        proto: onnx.NodeProto,
        inputs: tuple[Any, ...],
        values: dict[str, Any],
        opsets: Mapping[str, int],
    ) -> Sequence[Any]:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opset = opsets.get(domain, 1)
        converter = CONVERTERS.get((domain, proto.op_type))
        control = CONTROL.get((domain, proto.op_type))
        local = self._local.get((proto.domain, proto.op_type))
        if any(value is POISON for value in inputs):
            known = converter or local or control or (not domain and proto.op_type in OPERATORS)
            if not known and not functions.is_function(domain, proto.op_type, opset):
                raise Refused(f"is not supported{reason(domain, proto.op_type)}")
            return (POISON,) * len(proto.output)
        if local is not None:
            return self._function(local, proto, inputs, {})
        plain, types = narrow.opened(self._bb, domain, proto.op_type, inputs)
        node = Node(
            bb=self._bb,
            op=proto.op_type,
            domain=domain,
            opset=opset,
            inputs=plain,
            types=types,
            attrs={a.name: functions.attribute_value(a) for a in proto.attribute},
            wanted=tuple(bool(name) for name in proto.output),
            arrays=self._arrays,
            name=self._names.hint(proto.name or next(filter(None, proto.output), proto.op_type)),
        )
        origins = frozenset().union(*(self._origins_of(value) for value in plain))
        if control is not None:
            outputs = control(node, lambda graph, given: self._body(graph, given, values, opsets))
            return tuple(self._bind(value, origins, node.name) for value in outputs[: len(proto.output)])
        folded = None if is_narrow_cast(node) else _folded(node)
        if folded is not None:
            constants: Sequence[Any] = narrow.closed(domain, proto.op_type, types, tuple(map(array_const, folded)))
            return constants
        if converter is None:
            if not functions.is_function(domain, proto.op_type, opset):
                raise Refused(f"is not supported{reason(domain, proto.op_type)}")
            body = functions.body_of(proto, domain, opset, inputs)
            return self._function(body, proto, inputs, functions.defaults_of(domain, proto.op_type, opset))
        try:
            wide, half = widened(node)
            converted = narrow.closed(domain, proto.op_type, types, narrowed(wide, converter(wide), half))
        except functions.UseBody:
            body = functions.body_of(proto, domain, opset, inputs)
            return self._function(body, proto, inputs, functions.defaults_of(domain, proto.op_type, opset))
        outputs = converted if isinstance(converted, tuple) else (converted,)
        if len(outputs) < len(proto.output):
            raise Refused(f"has {len(proto.output)} outputs, of which only {len(outputs)} are supported")
        return tuple(self._bind(value, origins, node.name) for value in outputs[: len(proto.output)])

    def _origins_of(self, value: Any) -> frozenset[str]:
        if isinstance(value, tuple):
            return frozenset().union(*(self._origins_of(v) for v in value))
        return self._origins.get(value, frozenset()) if isinstance(value, relax.Var) else frozenset()

    def _bind(self, value: Any, origins: frozenset[str], name: str) -> Any:
        """Binds an output to a variable and remembers the graph inputs that it depends on."""
        if value is None:
            return POISON
        if isinstance(value, tuple):
            return tuple(self._bind(v, origins, name) for v in value)
        if isinstance(value, narrow.Narrow):
            return replace(value, expr=self._bind(value.expr, origins, name))
        if known_array(value, self._arrays) is not None:
            return value
        if not isinstance(value, relax.Var):
            value = self._bb.emit(value, name)
        if origins and value not in self._origins:
            self._origins[value] = origins
        return value

    def _function(
        self,
        body: onnx.FunctionProto,
        proto: onnx.NodeProto,
        inputs: tuple[Any, ...],
        defaults: Mapping[str, onnx.AttributeProto],
    ) -> Sequence[Any]:
        """Imports a function's body in place of the node that calls it."""
        given = {**defaults, **{a.name: a for a in body.attribute_proto}}
        given.update({a.name: a for a in proto.attribute})
        values = dict(zip(body.input, (*inputs, *[None] * len(body.input)), strict=False))
        opsets = {("" if e.domain == "ai.onnx" else e.domain): e.version for e in body.opset_import}
        before = len(self._problems)
        self._walk(functions.bound_nodes(body, given), values, opsets)
        if len(self._problems) > before:  # name the node that the user knows, not those of the expansion
            reasons = "; ".join(self._problems[before:])
            del self._problems[before:]
            raise Refused(f"is not supported in this form: its definition's {reasons}")
        return tuple(values.get(name) for name in body.output[: len(proto.output)])

    def _body(
        self, graph: onnx.GraphProto, given: Sequence[Any], values: dict[str, Any], opsets: Mapping[str, int]
    ) -> tuple[Any, ...]:
        """Imports the graph of an attribute within the scope `values`; its constants stay constants."""
        inner = dict(values)
        inner.update(zip((info.name for info in graph.input), given, strict=True))
        self._signature.initialisers(graph, inner, keep_params=False)
        before = len(self._problems), len(self._wanted_inputs)
        self._walk(graph.node, inner, opsets)
        if (len(self._problems), len(self._wanted_inputs)) != before:
            raise _Reported
        return tuple(inner[info.name] for info in graph.output)
