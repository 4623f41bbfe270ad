"""Floats of 4 and 8 bits, held as the float32 of the same value: rounding to them, and their bits.

All of it is exact. A type is described by what ml_dtypes says of it. Conditions compare floats: TVM takes integers that
are compared for indices, and makes int64 of all that is in them, what is reinterpreted included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx

_MANTISSA, _BIAS = 23, 127
_EXPONENT, _HALF, _SIGN = 0x7F800000, 1 << 22, -(1 << 31)
"""Of float32: the bits of its exponent, what makes 1.5 of a power of two, and the bit of its sign."""


@dataclass(frozen=True, slots=True)
class SmallFloat:
    """One of the types.

    Attributes:
        bits: of an element.
        mantissa: bits behind the point.
        least_exponent: of the smallest normal number.
        most: the largest finite number.
        nan, infinity: their bits without a sign; a type without NaN has the bits of -0 there, as ml_dtypes casts it.
        has_nan, has_infinity, has_negative_zero: whether there are such numbers.
    """

    bits: int
    mantissa: int
    least_exponent: int
    most: float
    nan: int
    infinity: int
    has_nan: bool
    has_infinity: bool
    has_negative_zero: bool


def _described(name: str) -> SmallFloat:
    of = np.dtype(getattr(ml_dtypes, name))
    limits = ml_dtypes.finfo(of)
    with np.errstate(over="ignore"):
        special = np.array([np.nan, np.inf, -0.0], np.float32).astype(of)
    nan, infinity, _ = (int(code) for code in special.view(np.uint8))
    numbers = special.astype(np.float32)
    return SmallFloat(
        limits.bits,
        limits.nmant,
        limits.minexp,
        float(limits.max),
        nan,
        infinity,
        bool(np.isnan(numbers[0])),
        bool(np.isinf(numbers[1])),
        bool(np.signbit(numbers[2])),
    )


SMALL_FLOATS = {
    name: _described(name)
    for name in ("float4_e2m1fn", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
}


def rounded(value: Any, name: str, saturate: bool = True) -> Any:
    """A float32 as the nearest number of the type, ties to even.

    A sum with 1.5 times a power of two that is larger by the places the type lacks rounds those off.

    Args:
        saturate: what is too large becomes the largest number; else an infinity, or NaN in a type without those.
            A type that has neither saturates always.
    """
    of = SMALL_FLOATS[name]
    saturate = saturate or not of.has_nan
    bound = tirx.const(of.most if saturate else 2 * of.most, "float32")
    held = tirx.max(tirx.min(value, bound), -bound)
    exponent = tirx.bitwise_and(tirx.reinterpret("int32", held), tirx.const(_EXPONENT, "int32"))
    exponent = tirx.max(exponent, tirx.const((_BIAS + of.least_exponent) << _MANTISSA, "int32"))
    places = ((_MANTISSA - of.mantissa) << _MANTISSA) + _HALF
    shift = tirx.reinterpret("float32", exponent + tirx.const(places, "int32"))
    number = tirx.reinterpret("float32", tirx.reinterpret("int32", held + shift)) - shift  # else a + b - b is a
    if not saturate:
        beyond = tirx.const(np.inf if of.has_infinity else np.nan, "float32")
        number = tirx.Select(tirx.abs(number) > tirx.const(of.most, "float32"), beyond, number)
    if of.has_negative_zero:
        sign = tirx.bitwise_and(tirx.reinterpret("int32", value), tirx.const(_SIGN, "int32"))
        number = tirx.reinterpret("float32", tirx.bitwise_or(tirx.reinterpret("int32", number), sign))
    return tirx.Select(tirx.isnan(value), value if of.has_nan else tirx.const(-0.0, "float32"), number)


def bits_of(number: Any, name: str) -> Any:
    """The bits of a number of the type, uint8."""
    of = SMALL_FLOATS[name]
    whole = tirx.reinterpret("int32", number)
    magnitude = tirx.bitwise_and(whole, tirx.const(~_SIGN, "int32"))
    size = tirx.reinterpret("float32", magnitude)
    least = tirx.const(2.0**of.least_exponent, "float32")
    normal = (magnitude >> (_MANTISSA - of.mantissa)) - ((_BIAS + of.least_exponent - 1) << of.mantissa)
    steps = tirx.min(size, least) * tirx.const(2.0 ** (of.mantissa - of.least_exponent), "float32")
    code = tirx.Select(size < least, steps.astype("int32"), normal)
    if of.has_infinity:
        code = tirx.Select(size > tirx.const(of.most, "float32"), tirx.const(of.infinity, "int32"), code)
    if of.has_nan:
        code = tirx.Select(tirx.isnan(number), tirx.const(of.nan, "int32"), code)
    sign = tirx.bitwise_and(whole >> 31, tirx.const(1 << (of.bits - 1), "int32"))
    return tirx.bitwise_or(code, sign).astype("uint8")


def number_of(byte: Any, name: str) -> Any:
    """The number whose bits are the lowest of a uint8, float32."""
    of = SMALL_FLOATS[name]
    whole = byte.astype("int32")
    magnitude = tirx.bitwise_and(whole, tirx.const((1 << (of.bits - 1)) - 1, "int32"))
    step = 2.0 ** (of.least_exponent - of.mantissa)
    steps = magnitude.astype("float32") * tirx.const(step, "float32")
    exponent = tirx.const((_BIAS + of.least_exponent - 1) << _MANTISSA, "int32")
    normal = tirx.reinterpret("float32", (magnitude << (_MANTISSA - of.mantissa)) + exponent)
    size = tirx.Select(steps < tirx.const(2.0**of.least_exponent, "float32"), steps, normal)
    nan = tirx.const(np.nan, "float32")
    if of.has_infinity:
        infinity = tirx.const(of.infinity * step, "float32")
        size = tirx.Select(steps == infinity, tirx.const(np.inf, "float32"), size)
        size = tirx.Select(steps > infinity, nan, size)
    elif of.has_nan and of.has_negative_zero:
        size = tirx.Select(steps == tirx.const(of.nan * step, "float32"), nan, size)
    sign = tirx.bitwise_and(whole << (32 - of.bits), tirx.const(_SIGN, "int32"))
    number = tirx.reinterpret("float32", tirx.bitwise_or(tirx.reinterpret("int32", size), sign))
    if of.has_negative_zero:
        return number
    return tirx.Select(whole.astype("float32") == tirx.const(float(of.nan), "float32"), nan, number)
