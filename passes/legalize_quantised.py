"""quantize and dequantize as ONNX means them: halves are rounded to even, and no number is converted out of range.

Both go by the bits of floats, which is half of the instructions on a CPU; on a GPU conversions have an eighth of the
rate of additions. In the 23 bits behind the 1 of 1.5 * 2^23 + x is x, rounded as the addition rounds, for |x| < 2^22.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Call

from subtune.core.numerics import FLOAT8
from subtune.passes.exprs import dims_of, literal
from subtune.tir.fused import by_reciprocal, fma, quotient

_SHIFT, _SHIFT_BITS = 12582912.0, 0x4B400000
"""1.5 * 2^23, and its bits."""
_HELD = 1 << 21
"""Integers up to this have room in those bits beside a zero point."""
_FLOAT8_MOST = 448.0
_MANTISSA, _EXPONENT, _HALF = 23, 0x7F800000, 1 << 22
"""Of float32: bits behind the point, those of the exponent, and what makes 1.5 of a power of two."""
_FLOAT8_LEAST_EXPONENT = 127 - 6
_FLOAT8_SHIFT = _MANTISSA - 3
_BEYOND = 1e6
"""More than any integer of 16 bits, and held exactly by float32: what is clamped to it first is converted safely."""


def legalize_quantize(bb: Any, call: Call) -> Any:
    """saturate(round(x / scale) + zero)"""
    to, axis = str(call.ty.dtype), int(call.attrs.axis)
    if to == FLOAT8:
        return _quantize_float8(bb, call, axis)
    limits = np.iinfo(to)

    def te_quantize(x: Any, scale: Any, zero: Any) -> Any:
        is_held = str(x.dtype) == "float32" and max(-limits.min, limits.max) < _HELD
        one = _rounded if is_held else _converted

        def at(*index: Any) -> Any:
            return one(x(*index), parameter_at(scale, index, axis), parameter_at(zero, index, axis), limits).astype(to)

        return te.compute(dims_of(call), at, name="quantize")

    return bb.call_te(te_quantize, call.args[0], *map(literal, call.args[1:]), primfunc_name_hint="quantize")


def legalize_dequantize(bb: Any, call: Call) -> Any:
    """scale * (x - zero)"""
    axis, to = int(call.attrs.axis), str(call.ty.dtype)

    def te_dequantize(x: Any, scale: Any, zero: Any) -> Any:
        if str(x.dtype) == FLOAT8:
            return te.compute(
                dims_of(call), lambda *i: x(*i).astype(to) * parameter_at(scale, i, axis).astype(to), name="dequantize"
            )
        is_held = to == "float32" and np.iinfo(str(x.dtype)).max < _HELD

        def one(*index: Any) -> Any:
            from_zero = parameter_at(zero, index, axis).astype("int32")
            if not is_held:
                return (x(*index).astype("int32") - from_zero).astype(to) * parameter_at(scale, index, axis).astype(to)
            bits = x(*index).astype("int32") + tirx.const(_SHIFT_BITS, "int32")
            whole = tirx.reinterpret("float32", bits) - (from_zero.astype("float32") + tirx.const(_SHIFT, "float32"))
            return whole * parameter_at(scale, index, axis)

        return te.compute(dims_of(call), one, name="dequantize")

    return bb.call_te(te_dequantize, call.args[0], *map(literal, call.args[1:]), primfunc_name_hint="dequantize")


def _quantize_float8(bb: Any, call: Call, axis: int) -> Any:
    """e4m3(x / scale), saturated: the cast of a device that has it."""

    def te_quantize(x: Any, scale: Any) -> Any:
        def at(*index: Any) -> Any:
            step = parameter_at(scale, index, axis)
            return (x(*index) if _is_one(step) else _ratio_of_float8(x(*index), step)).astype(FLOAT8)

        return te.compute(dims_of(call), at, name="quantize")

    return bb.call_te(te_quantize, call.args[0], literal(call.args[1]), primfunc_name_hint="quantize")


def rounded_to_float8(value: Any, step: Any) -> Any:
    """value / step as the nearest number of float8e4m3fn, in float32: of 4 significant bits, and no finer than 2^-9.

    A number that is larger by 20 binary places than the nearest power of two takes all places but these, as the sum
    of both is rounded; halves go to even. NaN stays NaN, infinity becomes the largest number.
    """
    held = _ratio_of_float8(value, step)
    exponent = tirx.bitwise_and(tirx.reinterpret("int32", held), tirx.const(_EXPONENT, "int32"))
    exponent = tirx.max(exponent, tirx.const(_FLOAT8_LEAST_EXPONENT << _MANTISSA, "int32"))
    shift = tirx.reinterpret("float32", exponent + tirx.const((_FLOAT8_SHIFT << _MANTISSA) + _HALF, "int32"))
    rounded = tirx.reinterpret("float32", tirx.reinterpret("int32", held + shift))  # else TVM takes a + b - b for a
    return tirx.Select(tirx.isnan(value), value, rounded - shift)


def _ratio_of_float8(value: Any, step: Any) -> Any:
    """value / step, of a value that is bounded first, so that all that follows is finite."""
    most = tirx.const(_FLOAT8_MOST, "float32")
    if not _is_one(step):
        most = most * step
        if not isinstance(step, tirx.FloatImm):  # one that a model computes may be negative
            most = tirx.max(most, -most)
    held = tirx.max(tirx.min(value, most), -most)
    return held if _is_one(step) else _quotient(held, step)


def _rounded(value: Any, step: Any, zero: Any, limits: np.iinfo) -> Any:
    """Of float32, by its bits. Bounded first, so that all that follows is finite."""
    zero = zero.astype("int32")
    low, high = (_scaled(tirx.const(int(limit), "int32") - zero, step) for limit in (limits.min, limits.max))
    if not isinstance(step, tirx.FloatImm):  # one that a model computes may be negative
        low, high = tirx.min(low, high), tirx.max(low, high)
    ratio = tirx.max(tirx.min(value, high), low)
    if not _is_one(step):
        ratio = _quotient(ratio, step, is_named=limits.bits > 8)
    bits = tirx.reinterpret("int32", ratio + tirx.const(_SHIFT, "float32"))
    return bits - (tirx.const(_SHIFT_BITS, "int32") - zero)


def _scaled(whole: Any, step: Any) -> Any:
    """Of no integer there is nothing to multiply: a bound by 0 is the one of a Relu, too."""
    number = tirx.const(float(int(whole)), "float32") if isinstance(whole, tirx.IntImm) else whole.astype("float32")
    is_zero = isinstance(whole, tirx.IntImm) and int(whole) == 0
    return number if is_zero or _is_one(step) else number * step


def _quotient(value: Any, step: Any, is_named: bool = False) -> Any:
    """value / step, rounded once. The reciprocal of a number that is known may be beyond float32.

    Args:
        is_named: `value` stands there once. Of bytes there are no long chains, as they become tables.
    """
    if isinstance(step, tirx.FloatImm):
        return value / step
    return quotient(value, step) if is_named else by_reciprocal(value, step, fma)


def _converted(value: Any, step: Any, zero: Any, limits: np.iinfo) -> Any:
    ratio = value if _is_one(step) else value / step
    most = tirx.const(_BEYOND, value.ty.dtype)
    whole = tirx.max(tirx.min(tirx.nearbyint(ratio), most), -most).astype("int32") + zero.astype("int32")
    low, high = (tirx.const(int(limit), "int32") for limit in (limits.min, limits.max))
    return tirx.max(tirx.min(whole, high), low)


def parameter_at(value: Any, index: tuple[Any, ...], axis: int) -> Any:
    """A scale or zero point of an element: a number, or the one of a vector along `axis`."""
    if not isinstance(value, te.Tensor):
        return value
    return value(index[axis]) if len(value.shape) else value()


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.FloatImm) and float(value) == 1.0
