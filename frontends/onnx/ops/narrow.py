"""Integers of 4 and 2 bits: held as int8 or uint8, one in a byte, beside the name of the type that they have.

Relax and the kernels know bytes and nothing smaller. Operators that only move elements move the bytes; those that take
such integers for what they are say so (`READERS`); all others refuse them. No input and no output of a model has such
a type. Floats of 8 bits are treated so, too: they hold themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from subtune.core.numerics import FLOAT8
from subtune.frontends.onnx.ops.node import Expr, Refused, array_const, dtype_name, element_name

CARRIERS = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8", FLOAT8: FLOAT8}
"""The dtype that holds the numbers of a type."""

MOVERS = frozenset("Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Gather Concat Expand Tile".split())
"""Operators of ONNX whose outputs are elements of their first input."""

READERS = frozenset(
    [("", "Cast"), *((domain, op) for domain in ("", "com.microsoft") for op in ("QuantizeLinear", "DequantizeLinear"))]
)
"""(domain, operator) of those that ask `Node.types` what their inputs are."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """A value of type `of`, held in the carrier's dtype by `expr`."""

    expr: Expr
    of: str


def limits_of(name: str) -> tuple[int, int]:
    """The least and the largest integer of a type, also of a narrow one."""
    if name not in CARRIERS:
        return int(np.iinfo(name).min), int(np.iinfo(name).max)
    bits = int(name[-1])
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def held(array: np.ndarray, keep: Callable[[np.ndarray], Expr] = array_const) -> Any:
    """A constant, by `keep`; of narrow integers as a `Narrow`."""
    name = str(array.dtype)
    return Narrow(keep(array.astype(CARRIERS[name])), name) if name in CARRIERS else keep(array)


def holdable(elem_type: int) -> None:
    """Raises Refused for an ONNX element type of which constants cannot be held."""
    if element_name(elem_type) not in CARRIERS:
        dtype_name(elem_type)


def opened(domain: str, op: str, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The inputs of a node as its converter takes them, and of each the narrow type that it has, "" for most.

    Raises:
        Refused: the operator takes no such integers.
    """
    types = tuple(value.of if isinstance(value, Narrow) else "" for value in inputs)
    named = next((name for name in types if name), "")
    if not named:
        return tuple(inputs), types
    moves = not domain and op in MOVERS and (op != "Concat" or len(set(types)) == 1)
    if not moves and (domain, op) not in READERS:
        raise Refused(f"takes {named}, which only operators that move elements and DequantizeLinear do here")
    return tuple(value.expr if isinstance(value, Narrow) else value for value in inputs), types


def closed(domain: str, op: str, types: Sequence[str], outputs: Any) -> Any:
    """What a converter gave, with the type of what it moved."""
    if not any(types) or domain or op not in MOVERS:
        return outputs
    if isinstance(outputs, tuple):
        return tuple(Narrow(value, types[0]) for value in outputs)
    return Narrow(outputs, types[0])
