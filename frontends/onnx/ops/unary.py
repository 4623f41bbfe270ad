"""Elementwise operators of one input; the activation functions are in `activation.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import FLOATS, SIGNED, UNSIGNED, Converter, Expr, Node, const, dtype, is_float

_INTS = (*SIGNED, *UNSIGNED)


def unary(op: Callable[..., Expr], allowed: tuple[str, ...] = (*FLOATS, *_INTS)) -> Converter:
    def convert(node: Node) -> Expr:
        if dtype(node.x) not in allowed:
            node.refuse(f"has dtype {dtype(node.x)}, which is not supported")
        return op(node.x)

    return convert


def through_float32(op: Callable[..., Expr]) -> Converter:
    """Transcendental functions: LLVM has none for 16-bit floats, which pass through float32."""

    def convert(node: Node) -> Expr:
        x = node.x
        if not is_float(x):
            node.refuse(f"has dtype {dtype(x)}, which is not supported")
        if dtype(x) not in ("float16", "bfloat16"):
            return op(x)
        return node.cast(node.emit(op(node.cast(x, "float32"))), dtype(x))

    return convert


def by_te(one: Callable[[Any], Any]) -> Converter:
    """An elementwise float function written on scalars, computed in float32 or float64."""

    def convert(node: Node) -> Expr:
        x = node.x
        if not is_float(x):
            node.refuse(f"has dtype {dtype(x)}, which is not supported")
        wide = "float64" if dtype(x) == "float64" else "float32"

        def whole(t: Any) -> Any:
            return mapped(lambda v: one(v.astype(wide)).astype(dtype(x)), t)

        return node.te(whole, x)

    return convert


def mapped(one: Callable[[Any], Any], t: Any) -> Any:
    return te.compute(t.shape, lambda *i: one(t(*i)), name="map")


def _c(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty)


def _asinh(v: Any) -> tirx.Select:
    """asinh by |x|, so that large negative values do not cancel; small ones by the series x - x**3/6."""
    magnitude = tirx.abs(v)
    exact = tirx.log(magnitude + tirx.sqrt(magnitude * magnitude + _c(1.0, v)))
    huge = tirx.log(magnitude) + _c(0.6931471805599453, v)
    large = tirx.Select(magnitude > _c(1e9, v), huge, exact)
    series = magnitude - magnitude * magnitude * magnitude / _c(6.0, v)
    result = tirx.Select(magnitude < _c(1e-2, v), series, large)
    return tirx.Select(v < _c(0.0, v), -result, result)


def _sinh(v: Any) -> tirx.Select:
    """e^|x|/2 - e^-|x|/2 without overflow of the first term; small values, which cancel, by their series."""
    magnitude = tirx.abs(v)
    half = tirx.exp(magnitude - _c(0.6931471805599453, v))
    square = v * v
    series = _c(1.0, v) + square / _c(6.0, v) * (
        _c(1.0, v) + square / _c(20.0, v) * (_c(1.0, v) + square / _c(42.0, v))
    )
    large = half - _c(0.25, v) / half
    return tirx.Select(magnitude < _c(0.3, v), v * series, tirx.Select(v < _c(0.0, v), -large, large))


def _cosh(v: Any) -> Any:
    half = tirx.exp(tirx.abs(v) - _c(0.6931471805599453, v))
    return half + _c(0.25, v) / half


def _acosh(v: Any) -> tirx.Select:
    huge = tirx.log(v) + _c(0.6931471805599453, v)
    exact = tirx.log(v + tirx.sqrt(v - _c(1.0, v)) * tirx.sqrt(v + _c(1.0, v)))
    return tirx.Select(v > _c(1e9, v), huge, exact)


def _sign(v: Any) -> tirx.Select:
    """Of NaN it is NaN."""
    one, zero = tirx.const(1, v.ty), tirx.const(0, v.ty)
    return tirx.Select(v > zero, one, tirx.Select(v < zero, zero - one, v))


def sign(node: Node) -> Expr:
    x = node.x
    if dtype(x) in UNSIGNED:
        return node.emit(relax.op.minimum(x, const(1, dtype(x))))
    return node.te(lambda t: mapped(_sign, t), x)


def isinf(node: Node) -> Expr:
    x = node.x
    wide = x if dtype(x) in ("float32", "float64") else node.cast(x, "float32")
    positive = relax.op.equal(wide, const(np.inf, dtype(wide)))
    negative = relax.op.equal(wide, const(-np.inf, dtype(wide)))
    if not node.attr("detect_negative", 1):
        return positive if node.attr("detect_positive", 1) else relax.op.not_equal(x, x)
    return relax.op.logical_or(positive, negative) if node.attr("detect_positive", 1) else negative


def isnan(node: Node) -> Expr:
    x = node.x
    return relax.op.isnan(x if dtype(x) in ("float32", "float64") else node.cast(x, "float32"))


def round_even(v: Any) -> Any:
    return tirx.nearbyint(v)


CONVERTERS: dict[str, Converter] = {
    "BitwiseNot": unary(relax.op.bitwise_not, _INTS),
    "Not": unary(relax.op.logical_not, ("bool",)),
    "Neg": unary(relax.op.negative, (*FLOATS, *SIGNED)),
    "Abs": unary(relax.op.abs),
    "Sign": sign,
    "Floor": through_float32(relax.op.floor),
    "Ceil": through_float32(relax.op.ceil),
    "Round": by_te(round_even),
    "Sqrt": through_float32(relax.op.sqrt),
    "Reciprocal": lambda node: relax.op.divide(const(1, dtype(node.x)), node.x),
    "Exp": through_float32(relax.op.exp),
    "Log": through_float32(relax.op.log),
    "Sin": through_float32(relax.op.sin),
    "Cos": through_float32(relax.op.cos),
    "Tan": through_float32(relax.op.tan),
    "Sinh": by_te(_sinh),
    "Cosh": by_te(_cosh),
    "Tanh": through_float32(relax.op.tanh),
    "Asin": through_float32(relax.op.asin),
    "Acos": through_float32(relax.op.acos),
    "Atan": through_float32(relax.op.atan),
    "Asinh": by_te(_asinh),
    "Acosh": by_te(_acosh),
    "Atanh": by_te(
        lambda v: _c(0.5, v) * tirx.log1p(_c(2.0, v) * v / (_c(1.0, v) - v)),
    ),
    "Erf": through_float32(relax.op.erf),
    "IsInf": isinf,
    "IsNaN": isnan,
}
