"""What an ONNX graph is given: its inputs, and its initialisers as constants or as arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
from tvm import relax

from subtune.core.errors import ShapeError
from subtune.core.tensor_spec import NARROW, carrier
from subtune.frontends.onnx.ops.graph import onnx_numpy, read_names
from subtune.frontends.onnx.ops.narrow import Narrow, held, holdable
from subtune.frontends.onnx.ops.node import Expr, Refused, array_const
from subtune.frontends.onnx.weights import read_tensor

# A parameter of at most this many elements stays a constant with `keep_params`: axes, scales, paddings.
_SMALL_ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Stands for the output of a node that could not be imported."""


POISON = Poisoned()


def _unread(array: np.ndarray) -> Expr:
    """Of a constant only the shape, which is folded: its numbers, perhaps gigabytes, stay in their file."""
    return relax.Var("unread", relax.TensorType(array.shape, str(array.dtype)))


@dataclass(slots=True)
class Signature:
    """The arguments of `main` as they are found; what cannot be one is a problem, and poisons what reads it."""

    shapes: Mapping[str, Sequence[int]]
    """Of the inputs whose shape the model leaves open."""
    constants: Mapping[str, np.ndarray]
    """Values of inputs that are no arguments."""
    problems: list[str]
    params: list[tuple[Expr, np.ndarray]] = field(default_factory=list)
    """Weights that are arguments, with their values."""
    origins: dict[Expr, frozenset[str]] = field(default_factory=dict)
    """Variable -> the inputs that it depends on."""
    arrays: dict[Expr, np.ndarray] = field(default_factory=dict)
    """Variable -> its value, of the weights that are arguments."""
    _names: set[str] = field(default_factory=set)

    def _identifier(self, name: str) -> str:
        """A unique Python-like identifier for an ONNX name."""
        text = "".join(c if c.isalnum() or c == "_" else "_" for c in name) or "_"
        text = text if text[0].isalpha() or text[0] == "_" else f"input_{text}"
        unique, n = text, 0
        while unique in self._names:
            n += 1
            unique = f"{text}_{n}"
        self._names.add(unique)
        return unique

    def initialisers(self, graph: onnx.GraphProto, values: dict[str, Any], keep_params: bool) -> None:
        """Constants, or arguments of `main` if parameters are kept and it is no shape or axis."""
        for tensor in graph.initializer:
            try:
                holdable(tensor.data_type)
            except Refused as e:
                self.problems.append(f"initialiser '{tensor.name}' {e}")
                values[tensor.name] = POISON
                continue
            array = read_tensor(tensor)
            is_kept = keep_params and array.size > _SMALL_ELEMENTS
            values[tensor.name] = held(array, partial(self._parameter, tensor.name) if is_kept else array_const)
        for sparse in graph.sparse_initializer:
            self.problems.append(f"initialiser '{sparse.values.name}' is sparse, which is not supported")
            values[sparse.values.name] = POISON

    def _parameter(self, name: str, array: np.ndarray) -> Expr:
        var = relax.Var(self._identifier(name), relax.TensorType(array.shape, str(array.dtype)))
        self.params.append((var, array))
        self.arrays[var] = array
        return var

    def inputs(self, graph: onnx.GraphProto, values: dict[str, Any]) -> list[Expr]:
        """The arguments of `main` in the model's order, without initialisers and bound constants.

        The value of a narrow one has its bits, which are to be read once `main` has begun (`boundary.entered`).
        """
        arguments, read = [], read_names(graph)
        for info in graph.input:
            if info.name in values:
                continue
            if info.name in self.constants:
                values[info.name] = held(self.constants[info.name], array_const if info.name in read else _unread)
                continue
            if not info.type.HasField("tensor_type"):
                kind = (info.type.WhichOneof("value") or "untyped").removesuffix("_type")
                self.problems.append(f"input '{info.name}' is no tensor but a {kind}, which is not supported")
                values[info.name] = POISON
                continue
            try:
                holdable(info.type.tensor_type.elem_type)
            except Refused as e:
                self.problems.append(f"input '{info.name}' {e}")
                values[info.name] = POISON
                continue
            dims = self._input_shape(info)
            elem = str(onnx_numpy(info))
            if 0 in dims:  # nothing to feed: an empty tensor is known
                values[info.name] = held(np.empty(dims, dtype=onnx_numpy(info)))
            var = relax.Var(self._identifier(info.name), relax.TensorType(dims, carrier(elem)))
            arguments.append(var)
            values.setdefault(info.name, Narrow(var, elem) if elem in NARROW else var)
            self.origins[var] = frozenset([info.name])
        return arguments

    def _input_shape(self, info: onnx.ValueInfoProto) -> tuple[int, ...]:
        if info.name in self.shapes:
            return tuple(int(d) for d in self.shapes[info.name])
        if not info.type.tensor_type.HasField("shape"):
            raise ShapeError(f"input '{info.name}' has no shape in the model: give it one")
        dims = []
        for position, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                name = f"symbolic dimension '{dim.dim_param}'" if dim.dim_param else "an unknown dimension"
                raise ShapeError(f"input '{info.name}' has {name} at axis {position}: give its shape")
            dims.append(dim.dim_value)
        return tuple(dims)
