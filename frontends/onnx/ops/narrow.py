"""Integers of 4 and 2 bits and floats of 8 and 4: held in a wider type, beside the name of the type that they have.

Relax and the kernels know no integers below a byte, and no small floats but float8e4m3fn. So integers are held as int8
or uint8, one in a byte, and floats as float32. Operators that only move elements move what holds them; those that take
such numbers for what they are say so (`READERS`); all others refuse them. Inputs and outputs of a model are bytes of
bits (`boundary`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from subtune.core.numerics import FLOAT8
from subtune.frontends.onnx.ops.node import Expr, Refused, array_const, dtype, dtype_name, element_name
from subtune.frontends.onnx.ops.small_floats import SMALL_FLOATS

INTEGERS = {"int4": "int8", "uint4": "uint8", "int2": "int8", "uint2": "uint8"}

CARRIERS = {**INTEGERS, **dict.fromkeys(SMALL_FLOATS, "float32"), FLOAT8: FLOAT8}
"""The dtype that holds the numbers of a type. Those of float8e4m3fn may be held as float32, too."""

MOVERS = frozenset("Identity Reshape Flatten Squeeze Unsqueeze Transpose Slice Split Gather Concat Expand Tile".split())
"""Operators of ONNX whose outputs are elements of their first input."""

READERS = frozenset(
    [
        ("", "Cast"),
        ("", "CastLike"),
        *((domain, op) for domain in ("", "com.microsoft") for op in ("QuantizeLinear", "DequantizeLinear")),
    ]
)
"""(domain, operator) of those that ask `Node.types` what their inputs are."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """A value of type `of`, held in the carrier's dtype by `expr`."""

    expr: Expr
    of: str


def limits_of(name: str) -> tuple[int, int]:
    """The least and the largest integer of a type, also of a narrow one."""
    if name not in INTEGERS:
        return int(np.iinfo(name).min), int(np.iinfo(name).max)
    bits = int(name[-1])
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def held(array: np.ndarray, keep: Callable[[np.ndarray], Expr] = array_const) -> Any:
    """A constant, by `keep`; of a narrow type as a `Narrow`."""
    name = str(array.dtype)
    return Narrow(keep(array.astype(CARRIERS[name])), name) if name in CARRIERS else keep(array)


def holdable(elem_type: int) -> None:
    """Raises Refused for an ONNX element type of which constants cannot be held."""
    if element_name(elem_type) not in CARRIERS:
        dtype_name(elem_type)


def in_float32(bb: relax.BlockBuilder, x: Expr) -> Expr:
    """Small floats as float32, of which they may be already."""
    if dtype(x) == "float32":
        return x
    one, zero = array_const(np.ones((), np.float32)), array_const(np.zeros((), np.int8))
    return bb.emit(relax.op.dequantize(x, one, zero, axis=0, out_dtype="float32"))


def opened(
    bb: relax.BlockBuilder, domain: str, op: str, inputs: Sequence[Any]
) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    """The inputs of a node as its converter takes them, and of each the narrow type that it has, "" for most.

    Raises:
        Refused: the operator takes no such numbers.
    """
    types = tuple(value.of if isinstance(value, Narrow) else "" for value in inputs)
    named = next((name for name in types if name), "")
    if not named:
        return tuple(inputs), types
    moves = not domain and op in MOVERS and (op != "Concat" or len(set(types)) == 1)
    if not moves and (domain, op) not in READERS:
        raise Refused(f"takes {named}, which only operators that move elements, DequantizeLinear and Cast do here")
    plain = tuple(value.expr if isinstance(value, Narrow) else value for value in inputs)
    if op == "Concat" and types[0] == FLOAT8 and len({dtype(value) for value in plain}) > 1:
        plain = tuple(in_float32(bb, value) for value in plain)
    return plain, types


def closed(domain: str, op: str, types: Sequence[str], outputs: Any) -> Any:
    """What a converter gave, with the type of what it moved."""
    if not any(types) or domain or op not in MOVERS:
        return outputs
    if isinstance(outputs, tuple):
        return tuple(Narrow(value, types[0]) for value in outputs)
    return Narrow(outputs, types[0])
