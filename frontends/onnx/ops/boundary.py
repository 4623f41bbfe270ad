"""Inputs and outputs of narrow types: bytes of bits outside (see `carrier`), and inside what `narrow` holds."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.narrow import INTEGERS, Narrow, in_float32
from subtune.frontends.onnx.ops.node import Expr, dtype, shape
from subtune.frontends.onnx.ops.small_floats import bits_of, number_of, rounded


def entered(bb: relax.BlockBuilder, bits: Expr, of: str, name: str) -> Narrow:
    """The values of an input of type `of`, whose `bits` are uint8.

    Args:
        name: of what is made.
    """
    value = _integer(of) if of in INTEGERS else lambda byte: number_of(byte, of)
    return Narrow(_elementwise(bb, value, "values", name, bits), of)


def left(bb: relax.BlockBuilder, value: Narrow, name: str) -> Expr:
    """The bits of a value, uint8, for an output."""
    if value.of in INTEGERS:
        mask = tirx.const(_mask(value.of), "uint8")
        return _elementwise(bb, lambda x: tirx.bitwise_and(x.astype("uint8"), mask), "bits", name, value.expr)
    made = bb.lookup_binding(value.expr) if isinstance(value.expr, relax.Var) else None
    if dtype(value.expr) != "float32" and getattr(getattr(made, "op", None), "name", "") == "relax.quantize":
        return _quantised(bb, made, value.of, name)
    return _elementwise(bb, lambda x: bits_of(x, value.of), "bits", name, in_float32(bb, value.expr))


def _mask(of: str) -> int:
    return (1 << int(of[-1])) - 1


def _integer(of: str) -> Callable[[Any], Any]:
    """(b & 15 ^ 8) - 8 of 4 bits with a sign."""
    mask = _mask(of)
    sign = 0 if of.startswith("u") else (mask + 1) // 2

    def value(byte: Any) -> Any:
        own = tirx.bitwise_and(byte, tirx.const(mask, "uint8"))
        if not sign:
            return own
        return tirx.bitwise_xor(own, tirx.const(sign, "uint8")).astype("int8") - tirx.const(sign, "int8")

    return value


def _quantised(bb: relax.BlockBuilder, call: Expr, of: str, name: str) -> Expr:
    """The bits of what relax.quantize makes, which in float32 would lose the sign of a zero."""
    axis, is_one = int(call.attrs.axis), prod(shape(call.args[1])) == 1

    def bits(x: Any, scale: Any) -> Any:
        def at(*index: Any) -> Any:
            step = scale(*(0 for _ in scale.shape)) if is_one else scale(index[axis])
            return bits_of(rounded(x(*index) / step, of), of)

        return te.compute(x.shape, at, name="bits")

    return bb.emit_te(bits, *call.args[:2], primfunc_name_hint="bits", name_hint=name)


def _elementwise(bb: relax.BlockBuilder, func: Callable[[Any], Any], what: str, name: str, x: Expr) -> Expr:
    def loop(t: Any) -> Any:
        return te.compute(t.shape, lambda *i: func(t(*i)), name=what)

    return bb.emit_te(loop, x, primfunc_name_hint=what, name_hint=name)
