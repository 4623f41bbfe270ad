"""A Relay module whose parameters have their roles -> Relax: every call by its converter, all shapes static."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.core.errors import ModelError, ShapeError, UnsupportedOpsError
from subtune.core.names import Names
from subtune.core.tensor_spec import TensorSpec
from subtune.frontends.one_line import one_line
from subtune.frontends.onnx.ops.importer import returned
from subtune.frontends.onnx.ops.node import (
    SUPPORTED_DTYPES,
    ConstantWanted,
    Refused,
    array_const,
    dtype,
    known_array,
    shape,
)
from subtune.frontends.relay.fold import fold
from subtune.frontends.relay.infer import infer
from subtune.frontends.relay.inputs import free
from subtune.frontends.relay.nodes import Constant, Function, Missing, Module, Tensor, TupleOf, Type, Var
from subtune.frontends.relay.ops.call import Call
from subtune.frontends.relay.ops.converters import CONVERTERS
from subtune.frontends.relay.ops.refused import REFUSED
from subtune.frontends.relay.roles import Source
from subtune.frontends.relay.walk import walk

_MAX_LISTED = 20
_MAX_PLACES = 3


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A parameter, or a field of one, that nothing has used yet: what it is used for may tell its type."""

    name: str
    type: Type
    source: Source
    is_input: bool

    @property
    def title(self) -> str:
        return self.name if isinstance(self.source, Missing) else f"%{self.name}"


class _Poisoned:
    """Stands for what could not be imported."""


_POISON = _Poisoned()


def import_module(
    module: Module,
    main: Function,
    inputs: Mapping[Var, Type],
    weight: Callable[[Source, Tensor | None], np.ndarray | None],
) -> tuple[tvm.IRModule, tuple[TensorSpec, ...], tuple[TensorSpec, ...], list[str]]:
    """The Relax module, its inputs, its outputs (the fields of nested tuples in order), and the calls that have other
    types than the model says.

    Args:
        inputs: the parameters that stay parameters, in order, with their types.
        weight: the value of another parameter, or of a constant without data, given its type where it is known; None
            where the type has to be known and is not.

    Raises:
        UnsupportedOpsError: every operator and form that is not supported. ShapeError: a type is missing.
        ModelError: the model is inconsistent.
    """
    bb = relax.BlockBuilder()
    importer = _Importer(bb, weight)
    arguments = [importer.parameter(var, inputs) for var in main.params]
    outputs: list[Any] = []
    failure: ModelError | None = None
    with bb.function("main"):
        with bb.dataflow():
            try:
                outputs = importer.outputs(walk(module, main, arguments, importer))
            except ModelError as error:  # once the builder's scopes are closed
                failure = error
            result = bb.emit_output(*returned(outputs))
        parameters = importer.parameters()
        bb.emit_func_output(result, params=[var for _, var in parameters])
    if failure:
        raise failure
    importer.raise_problems()
    mod = bb.get()
    mod["main"] = mod["main"].with_attr("num_input", len(parameters))
    mod = importer.names.noted(mod)
    names = ["output"] if len(outputs) == 1 else [f"output_{i}" for i in range(len(outputs))]
    found = tuple(TensorSpec(name, shape(value), dtype(value)) for name, value in zip(names, outputs, strict=True))
    return mod, tuple(spec for spec, _ in parameters), found, importer.different


class _Importer:
    """The meaning of a walk that builds Relax (`walk.Meaning`): values are normalised expressions."""

    def __init__(self, bb: relax.BlockBuilder, weight: Callable[[Source, Tensor | None], np.ndarray | None]) -> None:
        self._bb = bb
        self._weight = weight
        self._problems: dict[tuple[str, str], list[str]] = {}
        self._inputs: list[_Pending] = []
        self._made: dict[_Pending, Any] = {}
        self._constants: dict[Any, Any] = {}
        self._names: set[str] = set()
        self.different: list[str] = []
        self.names = Names()

    # Parameters

    def parameter(self, var: Var, inputs: Mapping[Var, Type]) -> Any:
        if var in inputs:
            return self._input(var, var.name, inputs[var])
        return _Pending(var.name, var.type, var, False)

    def _input(self, var: Var, name: str, kind: Type) -> Any:
        if isinstance(kind, TupleOf):
            return tuple(self._input(var, f"{name}_{i}", field) for i, field in enumerate(kind.fields))
        unique = free(name, self._names)
        self._names.add(unique)
        pending = _Pending(unique, kind, var, True)
        self._inputs.append(pending)
        return pending

    def parameters(self) -> list[tuple[TensorSpec, Any]]:
        """Inputs and their variables, in order; also those that nothing uses."""
        found = []
        for pending in self._inputs:
            var = self._resolved(pending, None)
            if isinstance(var, relax.Var):
                found.append((TensorSpec(pending.name, shape(var), dtype(var)), var))
        return found

    def _resolved(self, pending: _Pending, inferred: Tensor | None) -> Any:
        """The expression of a parameter; `inferred` is its type where it has none of its own."""
        if pending in self._made:
            return self._made[pending]
        kind = inferred if pending.type is None else pending.type
        at = pending.source.at
        if kind is not None and not isinstance(kind, Tensor):
            other = getattr(kind, "name", "of a tuple")
            return self._keep(pending, self.refuse(pending.title, at, f"has the type {other}, which no model can take"))
        if not pending.is_input:
            array = self._weight(pending.source, kind)
            if array is not None:
                return self._keep(pending, self._constant(pending.name, array, at))
        if kind is None:
            return self._keep(pending, self.refuse(pending.title, at, "has neither a type nor a value"))
        if None in kind.shape:
            unsized = (
                kind.unsized(pending.name) if pending.is_input else f"is {kind} and has no value: give one by --params"
            )
            return self._keep(pending, self.refuse(pending.title, at, unsized))
        if kind.dtype not in SUPPORTED_DTYPES:
            unsupported = f"has dtype {kind.dtype}, which is not supported"
            return self._keep(pending, self.refuse(pending.title, at, unsupported))
        name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in pending.name)
        name = name if name[:1].isalpha() else f"input_{name}"
        return self._keep(pending, relax.Var(name, relax.TensorType([dim or 0 for dim in kind.shape], kind.dtype)))

    def _keep(self, pending: _Pending, value: Any) -> Any:
        self._made[pending] = value
        return value

    # The walk

    def constant(self, node: Constant | Missing) -> Any:
        if node not in self._constants:
            if isinstance(node, Missing):
                self._constants[node] = _Pending(node.name, node.type, node, False)
            else:
                self._constants[node] = self._constant("a constant", node.array, node.at)
        return self._constants[node]

    def _constant(self, name: str, array: np.ndarray, at: str) -> Any:
        if str(array.dtype) not in SUPPORTED_DTYPES:
            return self.refuse(name, at, f"has dtype {array.dtype}, which is not supported")
        return self._bb.normalize(array_const(array))

    def call(self, op: str, args: tuple[Any, ...], attrs: Mapping[str, Any], at: str) -> Any:
        converter = CONVERTERS.get(op)
        if converter is None:
            return self.refuse(op, at, REFUSED.get(op, "is not supported"))
        values = self._arguments(op, args, attrs)
        if _is_poisoned(values):
            return _POISON
        folded = fold(op, values, attrs)
        if folded is not None:
            return self._bb.normalize(array_const(folded))
        try:
            name = self.names.hint(f"{op} at {at}" if at else op)
            return self._bound(converter(Call(self._bb, op, values, attrs, name)), name)
        except Refused as error:
            return self.refuse(op, at, str(error))
        except ConstantWanted as error:
            return self.refuse(op, at, f"needs {error.what} at compile time")
        except Exception as error:  # what Python and TVM say of attributes and shapes that do not fit has no one type
            return self.refuse(op, at, f"does not fit its arguments or attributes: {one_line(error)}")

    def _arguments(self, op: str, args: tuple[Any, ...], attrs: Mapping[str, Any]) -> tuple[Any, ...]:
        """The arguments with all parameters resolved: those of known type first, the others from them."""
        known = [_tensor(value, self._made) for value in args]

        def one(index: int, value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(one(-1, field) for field in value)
            if not isinstance(value, _Pending):
                return value
            inferred = None
            if value.type is None and value not in self._made and index >= 0:
                others = [kind for i, kind in enumerate(known) if i != index and kind is not None]
                inferred = infer(op, index, others[0] if others else None, attrs)
            return self._resolved(value, inferred)

        return tuple(one(index, value) for index, value in enumerate(args))

    def _bound(self, value: Any, name: str) -> Any:
        """A converter's result with every tensor bound to a variable of static shape, or a constant."""
        if isinstance(value, tuple | list):
            return tuple(self._bound(field, name) for field in value)
        if known_array(value, {}) is not None:
            return self._bb.normalize(value)
        if not isinstance(value, relax.Var):
            value = self._bb.emit(value, name)
        if isinstance(value.ty, relax.TupleType):
            fields = (self._bb.emit(relax.TupleGetItem(value, i), name) for i in range(len(value.ty.fields)))
            return tuple(self._bound(field, name) for field in fields)
        dims = getattr(getattr(value.ty, "shape", None), "values", None)
        if dims is None or not all(isinstance(dim, int | tvm.tirx.IntImm) for dim in dims):
            raise Refused("has a result whose shape depends on data, which is not supported")
        return value

    def typed(self, value: Any, kind: Type) -> Any:
        """An argument, whose parameter may tell its type."""
        if isinstance(value, _Pending) and value.type is None and isinstance(kind, Tensor):
            return self._resolved(value, kind)
        return value

    def compare(self, value: Any, kind: Type, op: str, at: str) -> None:
        """Counts the results of another type than the model says that they have."""
        if not _is_poisoned(value) and not _agrees(value, kind):
            found = " and ".join(str(Tensor(shape(leaf), dtype(leaf))) for leaf in _leaves(value))
            self.different.append(f"{op} at {at} gives {found}")

    def project(self, value: Any, index: int, at: str) -> Any:
        return value if value is _POISON else self.refuse(f"field {index}", at, "is taken of what is no tuple")

    def called(self, value: Any, at: str) -> Any:
        return value if value is _POISON else self.refuse("a tensor or tuple", at, "is called as if it were a function")

    def decide(self, condition: Any) -> bool | None:
        value = self._plain(condition)
        array = None if isinstance(value, tuple) or value is _POISON else known_array(value, {})
        return bool(array) if array is not None and array.size == 1 else None

    def join(self, condition: Any, then: Any, other: Any, at: str) -> Any:
        """Both branches are computed, as they have no effects, and one is selected."""
        condition, then, other = self._plain(condition), self._plain(then), self._plain(other)
        if _is_poisoned((condition, then, other)):
            return _POISON
        if isinstance(condition, tuple):
            return self.refuse("if", at, "has a tuple as its condition")
        if isinstance(then, tuple) and isinstance(other, tuple) and len(then) == len(other):
            return tuple(self.join(condition, a, b, at) for a, b in zip(then, other, strict=True))
        if isinstance(then, tuple) or isinstance(other, tuple) or shape(then) != shape(other):
            return self.refuse("if", at, "has branches of different shapes, which is not supported")
        if dtype(then) != dtype(other) or np.prod(shape(condition), dtype=int) != 1:
            return self.refuse("if", at, "has branches of different dtypes, or a condition that is no scalar")
        truth = self._bb.emit(relax.op.astype(relax.op.reshape(condition, ()), "bool"))
        return self._bb.emit(relax.op.where(truth, then, other))

    def refuse(self, what: str, at: str, reason: str) -> Any:
        self._problems.setdefault((what, reason), []).append(at)
        return _POISON

    def _plain(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._plain(field) for field in value)
        return self._resolved(value, None) if isinstance(value, _Pending) else value

    # The end

    def outputs(self, value: Any) -> list[Any]:
        """The tensors that `main` returns; none where something could not be imported."""
        flat = [leaf for leaf in _leaves(self._plain(value)) if leaf is not _POISON]
        if self._problems:
            return []
        if not flat:
            raise ModelError("The model returns no tensor.")
        return flat

    def raise_problems(self) -> None:
        """Raises all that could not be imported, each once with its places."""
        if not self._problems:
            return
        listed = [_listed(what, reason, places) for (what, reason), places in self._problems.items()]
        more = len(listed) - _MAX_LISTED
        text = "; ".join(listed[:_MAX_LISTED]) + (f"; and {more} more" if more > 0 else "")
        shapes_only = all("--shape" in reason for _, reason in self._problems)
        raise (ShapeError if shapes_only else UnsupportedOpsError)(f"the model cannot be imported: {text}")


def _listed(what: str, reason: str, places: Sequence[str]) -> str:
    known = [place for place in dict.fromkeys(places) if place]
    shown = ", ".join(known[:_MAX_PLACES]) + (
        f" and {len(known) - _MAX_PLACES} more" if len(known) > _MAX_PLACES else ""
    )
    return f"{what} at {shown} {reason}" if shown else f"{what} {reason}"


def _is_poisoned(value: Any) -> bool:
    return any(map(_is_poisoned, value)) if isinstance(value, tuple) else value is _POISON


def _agrees(value: Any, kind: Type) -> bool:
    """Whether a value has a type, as far as that says anything."""
    if isinstance(kind, TupleOf):
        fields = value if isinstance(value, tuple) else (value,)
        return len(fields) == len(kind.fields) and all(map(_agrees, fields, kind.fields))
    if not isinstance(kind, Tensor):
        return True
    if isinstance(value, tuple) or dtype(value) != kind.dtype or len(shape(value)) != len(kind.shape):
        return False
    return all(said in (None, dim) for said, dim in zip(kind.shape, shape(value), strict=True))


def _leaves(value: Any) -> list[Any]:
    return [leaf for field in value for leaf in _leaves(field)] if isinstance(value, tuple) else [value]


def _tensor(value: Any, made: Mapping[_Pending, Any]) -> Tensor | None:
    """The type of a value, if it is known by now."""
    if isinstance(value, _Pending):
        if value in made:
            value = made[value]
        else:
            return value.type if isinstance(value.type, Tensor) else None
    if isinstance(value, tuple) or value is _POISON:
        return None
    return Tensor(shape(value), dtype(value))
