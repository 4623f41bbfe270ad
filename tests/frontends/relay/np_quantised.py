"""TVM's quantised arithmetic in NumPy, integer for integer."""

from __future__ import annotations

from math import frexp
from typing import Any

import numpy as np

Quantum = tuple[Any, Any]
"""Scale and zero point."""


def along(value: Any, axis: int, ndim: int) -> np.ndarray:
    v = np.asarray(value)
    return v.reshape([-1 if a == axis % ndim else 1 for a in range(ndim)]) if v.size > 1 else v.reshape(())


def away(v: np.ndarray) -> np.ndarray:
    """Rounded, halves away from zero."""
    v64 = v.astype("float64")
    return np.trunc(v64 + np.copysign(0.5, v64))


def saturated(v: np.ndarray, to: str) -> np.ndarray:
    return np.clip(v.astype("float64"), np.iinfo(to).min, np.iinfo(to).max).astype(to)


def fixed(x: np.ndarray, factor: np.ndarray, rounding: str) -> np.ndarray:
    """x * factor with the factor as a fraction of 2**31, in exact integers."""
    made = np.zeros(x.shape, "int64")
    for at in np.ndindex(x.shape):
        f = float(np.broadcast_to(factor, x.shape)[at])
        part, shift = frexp(f)
        m = int(np.floor(part * 2**31 + 0.5))
        m, shift = (m // 2, shift + 1) if m == 2**31 else (m, shift)
        left, right = max(shift, 0), max(-shift, 0) + 31
        value = (int(x[at]) << left) * m
        half = 1 << (right - 1)
        made[at] = (value + (half - 1 if rounding == "TONEAREST" and value < 0 else half)) >> right
    return made


def requantised(
    x: np.ndarray,
    source: Quantum,
    target: Quantum,
    to: str,
    axis: int = -1,
    rounding: str = "UPWARD",
    compute: str = "float32",
) -> np.ndarray:
    """TVM's RequantizeLower for x86."""
    scale, zero = (along(np.asarray(v), axis, x.ndim) for v in source)
    factor = np.float32(scale).astype("float64") / np.float64(np.float32(target[0]))
    moved = x.astype("int64") - zero
    if np.all(factor == 1):
        return saturated(moved + target[1], to)
    if compute == "int64":
        return saturated(fixed(moved, factor, rounding) + target[1], to)
    value = moved.astype(compute) * factor.astype(compute) + np.asarray(target[1]).astype(compute)
    whole = np.floor(value + np.asarray(0.5, compute)) if rounding == "UPWARD" else away(value)
    return saturated(whole, to)


def quantised(x: np.ndarray, q: Quantum, to: str, axis: int = -1) -> np.ndarray:
    scale, zero = (along(v, axis, x.ndim) for v in q)
    ratio = x.astype("float32") / np.asarray(scale, "float32")
    return saturated(away(ratio) + zero, to)


def dequantised(x: np.ndarray, q: Quantum, axis: int = -1) -> np.ndarray:
    scale, zero = (along(v, axis, x.ndim) for v in q)
    return (x.astype("int64") - zero).astype("float32") * np.asarray(scale, "float32")
