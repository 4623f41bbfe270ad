"""Quantised numbers: made of floats, made floats again, and brought from one scale to another.

Everything is written as elementwise operators of Relax, so that the passes move it and fuse it behind the integer
product before it. TVM requantises in float32 on x86 and by 64-bit fixed point elsewhere; `compute_dtype` of the
operator decides, and float32 is taken where it says nothing. Both are TVM's arithmetic to the bit; they differ from one
another by at most 1.
"""

from __future__ import annotations

from math import frexp, prod
from typing import Any

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, axis_in, const, dtype, is_float, known_array, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import along, reshaped

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))
"""Added before truncating, it rounds halves away from zero, and nothing else up: the sum is rounded to even."""


def parameter(call: Call, value: Expr, x: Expr, axis: int, to: str) -> Expr:
    """A scale or zero point in dtype `to`: a scalar, or a vector along `axis` of x."""
    if prod(shape(value)) == 1:
        return _as(call, reshaped(call, value, ()), to)
    axis = axis_in(axis, rank(x))
    if shape(value) != (shape(x)[axis],):
        call.refuse(f"has a scale or zero point of shape {list(shape(value))} along axis {axis} of {list(shape(x))}")
    return along(call, _as(call, value, to), axis, rank(x))


def _as(call: Call, value: Expr, to: str) -> Expr:
    """A cast that keeps a constant one."""
    array = known_array(value, {})
    return const(array, to) if array is not None else call.cast(value, to)


def shifted(call: Call, x: Expr, zero: Expr, axis: int = -1, to: str = "int32") -> Expr:
    """x - zero in dtype `to`."""
    wide = call.cast(x, to)
    known = known_array(zero, {})
    if known is not None and not known.any():
        return wide
    return call.emit(relax.op.subtract(wide, parameter(call, zero, x, axis, to)))


def clamped(call: Call, x: Expr, to: str) -> Expr:
    """x, whole numbers in any dtype, saturated to integer dtype `to`; 2**31 is out of float32's reach there."""
    limits = np.iinfo(to)
    low, high = int(limits.min), int(limits.max)
    if is_float(x):
        high = min(high, 2**31 - 128)
        bounded = call.emit(relax.op.clip(x, float(low), float(high)))
    elif np.iinfo(dtype(x)).bits > limits.bits or low == 0:
        bounded = call.emit(relax.op.minimum(relax.op.maximum(x, const(low, dtype(x))), const(high, dtype(x))))
    else:
        bounded = x
    return call.cast(bounded, to)


def away_from_zero(call: Call, x: Expr) -> Expr:
    """Rounded, halves away from zero."""
    half = const(_BELOW_HALF, dtype(x)) if dtype(x) == "float32" else const(np.nextafter(0.5, 0.0), dtype(x))
    below = relax.op.less(x, const(0, dtype(x)))
    return call.emit(relax.op.trunc(relax.op.where(below, relax.op.subtract(x, half), relax.op.add(x, half))))


def quantised(call: Call, x: Expr, scale: Expr, zero: Expr, to: str, axis: int = -1) -> Expr:
    """saturate(round(x / scale) + zero)."""
    if to not in INTEGERS or not is_float(x):
        call.refuse(f"quantises {dtype(x)} to {to}")
    ratio = call.emit(relax.op.divide(call.cast(x, "float32"), parameter(call, scale, x, axis, "float32")))
    rounded = away_from_zero(call, ratio)
    return clamped(call, _plus(call, rounded, parameter(call, zero, x, axis, "float32")), to)


def _plus(call: Call, x: Expr, value: Expr) -> Expr:
    known = known_array(value, {})
    return x if known is not None and not known.any() else call.emit(relax.op.add(x, value))


def dequantised(call: Call, x: Expr, scale: Expr, zero: Expr, axis: int = -1) -> Expr:
    """(x - zero) * scale in float32."""
    wide = call.cast(shifted(call, x, zero, axis), "float32")
    return call.emit(relax.op.multiply(wide, parameter(call, scale, x, axis, "float32")))


def requantised(
    call: Call,
    x: Expr,
    source: tuple[Expr, Expr],
    target: tuple[Expr, Expr],
    to: str,
    axis: int = -1,
    rounding: str = "UPWARD",
    compute: str = "float32",
) -> Expr:
    """x of (scale, zero) `source` as dtype `to` of (scale, zero) `target`."""
    if is_float(x) or to not in (*INTEGERS, "int64") or prod(shape(target[0])) != 1:
        call.refuse(f"requantises {dtype(x)} to {to} by {prod(shape(target[0]))} output scales")
    given, wanted = known_array(source[0], {}), known_array(target[0], {})
    if given is not None and wanted is not None:
        factors = (given.astype("float64") / wanted.astype("float64").reshape(())).reshape(-1)
        if given.size == 1 and factors[0] == 1.0:
            whole = shifted(call, x, source[1], axis)
            return clamped(call, _plus(call, whole, parameter(call, target[1], x, axis, "int32")), to)
        if compute == "int64":
            whole = fixed_point(call, shifted(call, x, source[1], axis), factors, axis, rounding)
            return clamped(call, _plus(call, whole, parameter(call, target[1], x, axis, "int32")), to)
        factor = parameter(call, const(factors, compute), x, axis, compute)
    elif compute == "int64":
        call.refuse("computes in int64 by scales that are no constants")
    else:
        one = parameter(call, target[0], x, axis, compute)
        factor = call.emit(relax.op.divide(parameter(call, source[0], x, axis, compute), one))
    scaled = call.emit(relax.op.multiply(shifted(call, x, source[1], axis, compute), factor))
    moved = _plus(call, scaled, parameter(call, target[1], x, axis, compute))
    if rounding == "TONEAREST":
        return clamped(call, away_from_zero(call, moved), to)
    return clamped(call, call.emit(relax.op.floor(relax.op.add(moved, const(0.5, compute)))), to)


def fixed_point(call: Call, x: Expr, factors: np.ndarray, axis: int, rounding: str = "UPWARD") -> Expr:
    """x times `factors` as 31-bit fractions with a shift, rounded once; int32 in and out.

    Args:
        factors: one, or one per position of `axis` (float64).
    """
    pairs = [_fraction(float(f)) for f in factors]
    lefts, rights = [max(s, 0) for _, s in pairs], [max(-s, 0) + 31 for _, s in pairs]

    def vector(values: list[int]) -> Expr:
        return parameter(call, const(np.array(values), "int64"), x, axis, "int64")

    wide = call.cast(x, "int64")
    if any(lefts):
        wide = call.emit(relax.op.left_shift(wide, vector(lefts)))
    wide = call.emit(relax.op.multiply(wide, vector([m for m, _ in pairs])))
    half: Any = vector([1 << (r - 1) for r in rights])
    if rounding == "TONEAREST":
        below = relax.op.less(wide, const(0, "int64"))
        half = relax.op.where(below, vector([(1 << (r - 1)) - 1 for r in rights]), half)
    wide = call.emit(relax.op.right_shift(relax.op.add(wide, half), vector(rights)))
    return call.cast(wide, "int32")


def _fraction(factor: float) -> tuple[int, int]:
    """(m, s) with factor = m / 2**31 * 2**s, m rounded, half away from zero."""
    if factor == 0.0:
        return 0, 0
    part, shift = frexp(factor)
    whole = int(np.floor(abs(part) * 2**31 + 0.5)) * (1 if part > 0 else -1)
    return (whole // 2, shift + 1) if abs(whole) == 2**31 else (whole, shift)


def quantize(call: Call) -> Expr:
    axis = call.attr("axis", -1)
    return quantised(call, call.x, call.arg(1), call.arg(2), call.dtype("int8", "out_dtype"), axis)


def dequantize(call: Call) -> Expr:
    y = dequantised(call, call.x, call.arg(1), call.arg(2), call.attr("axis", -1))
    to = call.dtype("float32", "out_dtype")
    if to == "float16":
        y = call.emit(relax.op.clip(y, -65504.0, 65504.0))
    return call.cast(y, to)


def requantize(call: Call) -> Expr:
    rounding, compute = call.text("rounding", "None"), call.text("compute_dtype", "None")
    rounding = "UPWARD" if rounding == "None" else rounding
    compute = "float32" if compute == "None" else compute
    if rounding not in ("UPWARD", "TONEAREST") or compute not in ("int64", "float32", "float64"):
        call.refuse(f"has rounding {rounding} and compute_dtype {compute}")
    source, target = (call.arg(1), call.arg(2)), (call.arg(3), call.arg(4))
    to, axis = call.dtype("int8", "out_dtype"), call.attr("axis", -1)
    return requantised(call, call.x, source, target, to, axis, rounding, compute)


_SIMULATED = {1: "int8", 2: "uint8", 3: "int32"}


def _simulated(call: Call) -> str | None:
    """The dtype that argument 1 stands for; None where the simulation is switched off."""
    code = call.known(1)
    if code is None or int(code) not in (0, *_SIMULATED):
        call.refuse("simulates a dtype that is not known at compile time")
    return _SIMULATED.get(int(code))


def simulated_quantize(call: Call) -> Expr:
    """The numbers of `quantize` as floats."""
    to, x = _simulated(call), call.x
    if to is None:
        return x
    axis = call.attr("axis", -1)
    ratio = call.emit(relax.op.divide(x, parameter(call, call.arg(2), x, axis, dtype(x))))
    moved = _plus(call, away_from_zero(call, ratio), parameter(call, call.arg(3), x, axis, dtype(x)))
    return call.emit(relax.op.clip(moved, float(np.iinfo(to).min), float(np.iinfo(to).max)))


def simulated_dequantize(call: Call) -> Expr:
    x, axis = call.x, call.attr("axis", -1)
    if _simulated(call) is None:
        return x
    wide = relax.op.subtract(x, parameter(call, call.arg(3), x, axis, dtype(x)))
    return call.emit(relax.op.multiply(wide, parameter(call, call.arg(2), x, axis, dtype(x))))


CONVERTERS: dict[str, Converter] = {
    "qnn.quantize": quantize,
    "qnn.dequantize": dequantize,
    "qnn.requantize": requantize,
    "qnn.simulated_quantize": simulated_quantize,
    "qnn.simulated_dequantize": simulated_dequantize,
}
