"""Operators that ONNX has too, with the same meaning: one converter, tested once, for both frontends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from subtune.frontends.onnx.ops.node import Expr, const, dtype, numpy_dtype
from subtune.frontends.relay.ops.call import Call, Converter


def twin(op: str, **attrs: Any) -> Converter:
    """A converter that hands all arguments to the ONNX operator `op`."""

    def convert(call: Call) -> Any:
        return call.onnx(op, *(call.arg(i) for i in range(len(call.args))), **attrs)

    return convert


def cast_to(call: Call, x: Expr, to: str) -> Expr:
    """`x` as dtype `to`: floats to integers truncate; anything but zero is true."""
    return call.onnx("Cast", x, to=onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(to)))


def one_dtype(call: Call, values: Sequence[Expr]) -> tuple[Expr, ...]:
    """The values in one dtype: int32 beside int64 becomes int64.

    Relay's indices have the dtype in which their tensor's shape was written, which a text does not tell.
    """
    kinds = {dtype(v) for v in values}
    if kinds == {"int32", "int64"}:
        return tuple(call.cast(v, "int64") for v in values)
    return tuple(values) if len(kinds) == 1 else call.refuse(f"mixes {' and '.join(dtype(v) for v in values)}")


def indices(values: list[int]) -> Expr:
    """A list of integers as ONNX takes axes and shapes: a constant of int64."""
    return const(values, "int64")
