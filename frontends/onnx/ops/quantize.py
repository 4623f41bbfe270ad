"""Quantised products, and what all quantised operators share: ONNX's formulas, rounding half to even."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from subtune.frontends.onnx.ops.conv import integer_convolution, with_bias
from subtune.frontends.onnx.ops.linear import integer_product
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, array_const, const, dtype, only_dtypes, rank, shape

BYTES = ("int8", "uint8")
SCALES = ("float32", "float16", "bfloat16")
_LARGEST = float(np.finfo(np.float32).max)


def scale_at(
    node: Node,
    index: int,
    channels: int | None = 1,
    allowed: Sequence[str] = ("float32",),
    positive: bool = True,
) -> Expr:
    """Input `index`, a scale: one, or one of each channel; of any shape if `channels` is None.

    One that is known now must be positive, unless `positive` is false, and finite.
    """
    scale = node.need(index)
    if dtype(scale) not in allowed:
        node.refuse(f"has a scale of dtype {dtype(scale)}")
    value = node.known(index)
    if value is not None:
        wide = value.astype("float32")
        if not np.isfinite(wide).all() or (positive and not (wide > 0).all()):
            node.refuse(f"has a scale that is not {'positive and ' if positive else ''}finite")
    return _of_channels(node, scale, "scale", channels)


def zero_at(node: Node, index: int, of: str, channels: int | None = 1) -> Expr | None:
    """Input `index`, the zero point of values of dtype `of`, shaped as their scale; None, which means 0, if omitted."""
    zero = node.get(index)
    if zero is None:
        return None
    if node.type_of(index) != of:
        node.refuse(f"has a zero point of dtype {node.type_of(index)} for values of {of}")
    return _of_channels(node, zero, "zero point", channels)


def _of_channels(node: Node, value: Expr, what: str, channels: int | None) -> Expr:
    if channels is not None and (rank(value) > 1 or prod(shape(value)) not in (1, channels)):
        wanted = "one value" if channels == 1 else f"one value or {channels}"
        node.refuse(f"has a {what} of shape {list(shape(value))}, not {wanted}")
    return value


def _parameter(node: Node, value: Expr, ndim: int, axis: int) -> Expr:
    """A scale or zero point shaped to broadcast along `axis`; a single value as a scalar."""
    if prod(shape(value)) == 1:
        return node.emit(relax.op.reshape(value, ()))
    return node.emit(relax.op.reshape(value, tuple(shape(value)[0] if a == axis else 1 for a in range(ndim))))


def broadcast_at(t: Any, index: Sequence[Any]) -> Any:
    """The element of the tensor `t` that numpy's broadcasting puts at `index`."""
    last = index[len(index) - len(t.shape) :]
    return t(*(0 if int(d) == 1 else v for d, v in zip(t.shape, last, strict=True)))


def bounded(value: Any, low: float, high: float) -> Any:
    """A float clamped, so that it is in an integer's range. It also keeps a product and a sum from being one FMA."""
    return tirx.max(tirx.min(value, tirx.const(high, "float32")), tirx.const(low, "float32"))


def saturated(value: Any, to: str) -> Any:
    """round_half_even of a float, as the nearest that dtype `to` has."""
    limits = np.iinfo(to)
    return tirx.nearbyint(bounded(value, float(limits.min), float(limits.max))).astype("int32").astype(to)


def rounded(node: Node, x: Expr, zero: Expr | None, to: str) -> Expr:
    """saturate(round_half_even(x) + zero) as dtype `to`, of float32."""
    return quantise(node, x, const(1.0, "float32"), zero, to, 0)


def quantise(node: Node, x: Expr, scale: Expr, zero: Expr | None, to: str, axis: int) -> Expr:
    """saturate(round_half_even(x / scale) + zero) as dtype `to`; every intermediate value is exact."""
    x, scale = node.cast(x, "float32"), node.cast(scale, "float32")
    if _reaches_infinity(scale, to):
        x = node.emit(relax.op.clip(x, -_LARGEST, _LARGEST))
    return _in_relax(node, relax.op.quantize, x, scale, zero, to, axis)


def _reaches_infinity(scale: Expr, to: str) -> bool:
    """Whether integers of dtype `to` may stand for infinity, as where a mask of float32's least number is quantised.

    Nothing else bounds x then: its limits in steps are bounded by infinity.
    """
    limits = np.iinfo(to)
    with np.errstate(over="ignore"):
        most = (
            np.abs(scale.value.numpy()) * np.float32(limits.max - limits.min)
            if isinstance(scale, GenericConst)
            else np.float32(0)
        )
    return bool(np.any(np.isinf(most)))


def dequantised(node: Node, x: Expr, scale: Expr, zero: Expr | None, axis: int) -> Expr:
    """scale * (x - zero) in float32, of int32 and whatever is shorter."""
    return _in_relax(node, relax.op.dequantize, x, scale, zero, dtype(x), axis)


def _in_relax(node: Node, op: Callable[..., Expr], x: Expr, scale: Expr, zero: Expr | None, of: str, axis: int) -> Expr:
    """The operator of Relax, whose scale and zero point have no dims, or are vectors; `of`: type of the integers."""
    dims = () if prod(shape(scale)) == 1 else shape(scale)
    zero = const(np.zeros(dims, of), of) if zero is None else _reshaped(node, zero, dims)
    to = of if op is relax.op.quantize else "float32"
    return node.emit(op(x, _reshaped(node, scale, dims), zero, axis=axis, out_dtype=to))


def _reshaped(node: Node, value: Expr, dims: tuple[int, ...]) -> Expr:
    if isinstance(value, GenericConst):
        return array_const(value.value.numpy().reshape(dims))
    return node.emit(relax.op.reshape(value, dims))


def dynamic_quantize_linear(node: Node) -> tuple[Expr, Expr, Expr]:
    x = node.x
    zero = const(0.0, "float32")
    high = node.emit(relax.op.maximum(zero, relax.op.max(x)))
    low = node.emit(relax.op.minimum(zero, relax.op.min(x)))
    scale = node.emit(relax.op.divide(relax.op.subtract(high, low), const(255.0, "float32")))
    flat = relax.op.equal(scale, zero)
    safe = node.emit(relax.op.where(flat, const(1.0, "float32"), scale))
    start = node.emit(relax.op.divide(relax.op.negative(low), safe))
    point = quantise(node, start, const(1.0, "float32"), None, "uint8", 0)
    return quantise(node, x, safe, point, "uint8", 0), scale, point


def factor_of(node: Node, acc: Expr, scales: tuple[int, ...], axis: int, alpha: float = 1.0) -> Expr:
    """alpha * a_scale * b_scale (/ y_scale), which are the inputs `scales`; b_scale may have one of each channel."""
    a, b, *others = scales
    channels = shape(acc)[axis] if rank(acc) else 1

    def part(index: int, count: int = 1) -> Expr:
        scale = scale_at(node, index, count, SCALES)
        return _parameter(node, node.cast(scale, "float32"), rank(acc), axis)

    factor = part(a)
    if alpha != 1.0:
        factor = node.emit(relax.op.multiply(const(alpha, "float32"), factor))
    factor = node.emit(relax.op.multiply(factor, part(b, channels)))
    for y in others:
        factor = node.emit(relax.op.divide(factor, part(y)))
    return factor


def scaled(node: Node, acc: Expr, factor: Expr) -> Expr:
    return node.emit(relax.op.multiply(node.cast(acc, "float32"), factor))


def qlinear_matmul(node: Node) -> Expr:
    """acc * (a_scale * b_scale / y_scale), rounded, plus the zero point, of exact sums in int32."""
    a, b, y_zero = node.need(0), node.need(3), node.need(7)
    only_dtypes(node, y_zero, BYTES)
    columns = shape(b)[-1] if rank(b) > 1 else 1
    acc = integer_product(node, a, b, zero_at(node, 2, dtype(a)), zero_at(node, 5, dtype(b), columns))
    axis = rank(acc) - 1
    y = scaled(node, acc, factor_of(node, acc, (1, 4, 6), axis))
    return rounded(node, y, zero_at(node, 7, dtype(y_zero)), dtype(y_zero))


def qlinear_conv(node: Node) -> Expr:
    """As `qlinear_matmul`, with a bias in int32."""
    x, w, y_zero = node.need(0), node.need(3), node.need(7)
    channels = shape(w)[0] if rank(w) else 1
    acc = integer_convolution(node, x, w, zero_at(node, 2, dtype(x)), zero_at(node, 5, dtype(w), channels))
    acc = with_bias(node, acc, node.get(8))
    y = scaled(node, acc, factor_of(node, acc, (1, 4, 6), 1))
    return rounded(node, y, zero_at(node, 7, dtype(y_zero)), dtype(y_zero))


CONVERTERS: dict[str, Converter] = {
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
}
