"""Relay -> `Imported`: text or JSON, the parameters' values and roles, then Relax."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil

from subtune.core.errors import ModelError
from subtune.frontends.imported import Imported
from subtune.frontends.onnx.ops.node import SUPPORTED_DTYPES, numpy_dtype
from subtune.frontends.parameters import Parameters
from subtune.frontends.relay.inputs import sized, some, tensors
from subtune.frontends.relay.json_form import read_json
from subtune.frontends.relay.nodes import Function, Missing, Module, Tensor, TupleOf, Var
from subtune.frontends.relay.params import load_params
from subtune.frontends.relay.random_weights import random_weight
from subtune.frontends.relay.roles import Source, Use, is_weight, uses
from subtune.frontends.relay.text import read_text
from subtune.frontends.relay.to_relax import import_module
from subtune.frontends.symbolic import SymbolicInput, named

_REMEDY = (
    "give --params FILE (of relay.save_param_dict, or .npz), --random-params, or --inputs NAME,... for what is an input"
)
_JSON = re.compile(r"\s*[{\[]")

Shapes = Mapping[str, "Sequence[int] | int"]


def load_relay(text: str, shapes: Shapes, parameters: Parameters, name: str = "relay") -> Imported:
    """Import a Relay module's text or JSON.

    Raises:
        ModelError: it is no Relay, or parameters have no values. ShapeError: a type is missing.
        UnsupportedOpsError: all operators that cannot be imported.
    """
    with _limits(name):
        return _load(text, shapes, parameters, name)


def relay_inputs(text: str, shapes: Shapes, parameters: Parameters, name: str = "relay") -> tuple[SymbolicInput, ...]:
    """The inputs that have a type, with the dimensions that `shapes` leaves open as symbols, `NAME.AXIS` for each `?`.

    Raises:
        ModelError: it is no Relay. ShapeError: a shape contradicts the model.
    """
    with _limits(name):
        module, main = _read(text)
        values = load_params(parameters.values) if parameters.values is not None else {}
        typed = sized(_inputs(main, uses(module, main), values, parameters), shapes)
        found = {name: kind for name, kind in tensors(typed).items() if isinstance(kind, Tensor)}
        dims = named({name: kind.shape for name, kind in found.items()})
        return tuple(SymbolicInput(name, dims[name] or (), kind.dtype) for name, kind in found.items())


@contextmanager
def _limits(name: str) -> Iterator[None]:
    try:
        yield
    except RecursionError as error:
        raise ModelError(f"The Relay model {name!r} has types or tuples that are nested too deeply.") from error
    except MemoryError as error:
        raise ModelError(f"The Relay model {name!r} does not fit this machine's memory.") from error


def _read(text: str) -> tuple[Module, Function]:
    text = text.lstrip("\ufeff")
    module = read_json(text) if _JSON.match(text) else read_text(text)
    return module, _main(module)


def _load(text: str, shapes: Shapes, parameters: Parameters, name: str) -> Imported:
    module, main = _read(text)
    values = load_params(parameters.values) if parameters.values is not None else {}
    found = uses(module, main)
    weights = _Weights(values, found, parameters)
    inputs = _inputs(main, found, values, parameters)
    missing = [node for node in found if isinstance(node, Missing) and not weights.has(node)]
    weights.check([var for var in main.params if var not in inputs and not weights.has(var)], missing)
    typed = sized(inputs, shapes)
    mod, specs, outputs, different = import_module(module, main, typed, weights.value)
    notes = weights.notes(specs)
    if different:
        notes += (f"{len(different)} calls give other types than the model says, the first: {different[0]}",)
    return Imported(mod, specs, outputs, name, None, notes)


def _main(module: Module) -> Function:
    if "main" in module.functions:
        return module.functions["main"]
    if len(module.functions) == 1:
        return next(iter(module.functions.values()))
    names = ", ".join(f"@{name}" for name in module.functions) or "no function"
    raise ModelError(f"The Relay module has no function @main: it has {names}.")


def _inputs(
    main: Function, found: Mapping[Source, Use], values: Mapping[str, Any], parameters: Parameters
) -> list[Var]:
    """The parameters of `main` that stay parameters."""
    if parameters.inputs is not None:
        names = [var.name for var in main.params]
        if unknown := [name for name in parameters.inputs if name not in names]:
            raise ModelError(
                f"--inputs names {', '.join(unknown)}, and main has no such parameter; it has {some(names)}."
            )
        return [var for var in main.params if var.name in parameters.inputs]
    free = [var for var in main.params if var.name not in values]
    return [
        var for var in free if isinstance(var.type, TupleOf) or not is_weight(var, found[var], var is main.params[0])
    ]


@dataclass(slots=True)
class _Weights:
    """Where the values of weights come from: what was given, else random ones if those were asked for."""

    given: Mapping[str, np.ndarray]
    uses: Mapping[Source, Use]
    parameters: Parameters
    random: int = 0
    nbytes: int = 0

    def has(self, source: Source) -> bool:
        return self._given(source) is not None

    def _given(self, source: Source) -> np.ndarray | None:
        if source.name in self.given:
            return self.given[source.name]
        return self.given.get(f"constant_{source.index}") if isinstance(source, Missing) else None

    def check(self, weights: Sequence[Var], constants: Sequence[Missing]) -> None:
        """Raises ModelError: there are weights without values, and random ones were not asked for."""
        if self.parameters.random:
            return
        if weights:
            count = "1 parameter" if len(weights) == 1 else f"{len(weights)} parameters"
            raise ModelError(f"The model has no values for {count} ({some(var.name for var in weights)}): {_REMEDY}.")
        if constants:
            named = some(node.name for node in constants)
            raise ModelError(
                f"The text holds no data for {named}: print it with its metadata, or give the values as parameters of "
                f"these names (or constant_{constants[0].index}), or --random-params."
            )

    def value(self, source: Source, kind: Tensor | None) -> np.ndarray | None:
        """The array of a weight; `kind` is its type as the model says or its use tells."""
        array = self._given(source)
        if array is not None:
            return _fitted(source.name, array, kind)
        if kind is None or None in kind.shape or kind.dtype not in SUPPORTED_DTYPES:
            return None
        self.random += 1
        self.nbytes += math.prod(dim or 0 for dim in kind.shape) * numpy_dtype(kind.dtype).itemsize
        if self.nbytes > psutil.virtual_memory().total:
            raise ModelError(f"The parameter {source.name!r} of type {kind} does not fit this machine's memory.")
        return random_weight(source.name, kind, self.uses.get(source, Use()), self.parameters.seed)

    def notes(self, inputs: Sequence[Any]) -> tuple[str, ...]:
        taken = ", ".join(str(spec) for spec in inputs) or "none"
        lines = [f"inputs: {taken}"]
        if self.random:
            lines.append(f"{self.random} parameters have random values: outputs mean nothing, times do")
        return tuple(lines)


def _fitted(name: str, array: np.ndarray, kind: Tensor | None) -> np.ndarray:
    """The array in the type that the model says, which only its dtype's width may differ from.

    Raises ModelError: the shape or the kind of numbers differs.
    """
    if kind is None:
        return array
    fits = len(kind.shape) == array.ndim and all(a in (None, b) for a, b in zip(kind.shape, array.shape, strict=True))
    if not fits:
        raise ModelError(f"The parameter {name!r} has the shape {list(array.shape)}, and the model wants {kind}.")
    if str(array.dtype) == kind.dtype or kind.dtype not in SUPPORTED_DTYPES:
        return array
    wanted = numpy_dtype(kind.dtype)
    if array.dtype.kind != wanted.kind:
        raise ModelError(f"The parameter {name!r} has the dtype {array.dtype}, and the model wants {kind}.")
    return array.astype(wanted)
