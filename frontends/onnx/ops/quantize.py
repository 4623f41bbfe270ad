"""Quantised operators: integer results are those of the ONNX formulas, rounding half to even."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.conv import integer_convolution
from subtune.frontends.onnx.ops.linear import integer_product
from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.node import (
    Converter,
    Expr,
    Node,
    axis_in,
    const,
    dtype,
    dtype_name,
    is_float,
    rank,
    shape,
)

_INTEGERS = ("int8", "uint8", "int16", "uint16")


def _parameter(node: Node, value: Expr, ndim: int, axis: int) -> Expr:
    """A scale or zero point shaped to broadcast along `axis`; a single value as a scalar."""
    if prod(shape(value)) == 1:
        return node.emit(relax.op.reshape(value, ()))
    if rank(value) != 1:
        node.refuse("is quantised by blocks")
    return node.emit(relax.op.reshape(value, tuple(shape(value)[0] if a == axis else 1 for a in range(ndim))))


def quantise(node: Node, x: Expr, scale: Expr, zero: Expr | None, to: str, axis: int) -> Expr:
    """saturate(round_half_even(x / scale) + zero) as dtype `to`; every intermediate value is exact."""
    if to not in _INTEGERS:
        node.refuse(f"quantises to {to}")
    wide = node.cast(x, "float32")
    ratio = node.emit(relax.op.divide(wide, _parameter(node, node.cast(scale, "float32"), rank(x), axis)))
    limits = np.iinfo(to)
    inputs = [ratio]
    if zero is not None:
        inputs.append(_parameter(node, node.cast(zero, "int32"), rank(x), axis))

    def whole(t: Any, *zeros: Any) -> Any:
        def one(*i: Any) -> Any:
            # Clamped before the conversion, so that no float is out of the integer's range.
            bounded = tirx.max(tirx.min(tirx.nearbyint(t(*i)), tirx.const(1e6, "float32")), tirx.const(-1e6, "float32"))
            value = bounded.astype("int32")
            if zeros:
                z = zeros[0]
                index = [0 if int(d) == 1 else v for d, v in zip(z.shape, i[len(i) - len(z.shape) :], strict=True)]
                value = value + z(*index)
            low, high = tirx.const(int(limits.min), "int32"), tirx.const(int(limits.max), "int32")
            return tirx.max(tirx.min(value, high), low).astype(to)

        return te.compute(t.shape, one, name="quantise")

    return node.te(whole, *inputs)


def _axis(node: Node, x: Expr) -> int:
    axis = node.attr("axis", 1)
    scale = node.need(1)
    return 0 if prod(shape(scale)) == 1 else axis_in(axis, rank(x))


def _per_element(node: Node, x: Expr, value: Expr) -> Expr:
    """A scale or zero point of every block along the axis, as one of every element of x."""
    axis, size = axis_in(node.attr("axis", 1), rank(x)), node.attr("block_size")
    dims = [-(-d // size) if a == axis else d for a, d in enumerate(shape(x))]
    if list(shape(value)) != dims:
        node.refuse(f"has parameters {list(shape(value))} for blocks of {size} of {list(shape(x))}")
    whole = node.emit(relax.op.repeat(value, size, axis))
    return slice_axis(node, whole, axis, 0, shape(x)[axis])


def quantize_linear(node: Node) -> Expr:
    x, scale, zero = node.need(0), node.need(1), node.get(2)
    if node.attr("block_size", 0):
        node.refuse("is quantised by blocks")
    if node.attr("precision", 0):
        node.refuse("has a precision")
    to = dtype_name(node.attr("output_dtype")) if node.attr("output_dtype") else "uint8"
    if zero is not None:
        to = dtype(zero)
    if dtype(x) not in ("float32", "int32") or dtype(scale) != "float32":
        node.refuse(f"has dtypes {dtype(x)} and {dtype(scale)}")
    return quantise(node, x, scale, zero, to, _axis(node, x))


def dequantize_linear(node: Node) -> Expr:
    x, scale, zero = node.need(0), node.need(1), node.get(2)
    if not is_float(scale):
        node.refuse(f"has scale dtype {dtype(scale)}")

    def spread(value: Expr, to: str) -> Expr:
        wide = node.cast(value, to)
        return (
            _per_element(node, x, wide)
            if node.attr("block_size", 0)
            else _parameter(node, wide, rank(x), _axis(node, x))
        )

    wide = node.cast(x, "int32")
    if zero is not None:
        wide = node.emit(relax.op.subtract(wide, spread(zero, "int32")))
    factor = spread(scale, "float32")
    y = node.emit(relax.op.multiply(node.cast(wide, "float32"), factor))
    to = dtype_name(node.attr("output_dtype")) if node.attr("output_dtype") else dtype(scale)
    return node.cast(y, to)


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


def _requantised(node: Node, acc: Expr, scales: tuple[Expr, Expr, Expr], zero: Expr, axis: int) -> Expr:
    """acc * (a_scale * b_scale / y_scale), rounded, plus the zero point. `axis` is that of a per-channel
    b_scale.
    """
    a, b, y = (node.cast(s, "float32") for s in scales)
    if any(prod(shape(s)) != 1 and rank(s) != 1 for s in (a, b, y)) or prod(shape(y)) != 1:
        node.refuse("has scales of higher rank or one output scale per channel")
    if prod(shape(a)) != 1:
        node.refuse("has one input scale per row")
    factor = relax.op.divide(
        relax.op.multiply(_parameter(node, a, rank(acc), axis), _parameter(node, b, rank(acc), axis)),
        _parameter(node, y, rank(acc), axis),
    )
    scaled = node.emit(relax.op.multiply(node.cast(acc, "float32"), node.emit(factor)))
    return quantise(node, scaled, const(1.0, "float32"), zero, dtype(zero), axis)


def qlinear_matmul(node: Node) -> Expr:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.need(i) for i in range(8))
    acc = integer_product(node, a, b, a_zero, b_zero)
    return _requantised(node, acc, (a_scale, b_scale, y_scale), y_zero, rank(acc) - 1)


def qlinear_conv(node: Node) -> Expr:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.need(i) for i in range(8))
    acc = integer_convolution(node, x, w, x_zero, w_zero)
    if node.get(8) is not None:
        bias = node.need(8)
        column = relax.op.reshape(bias, (1, shape(bias)[0], *[1] * (rank(acc) - 2)))
        acc = node.emit(relax.op.add(acc, column))
    return _requantised(node, acc, (x_scale, w_scale, y_scale), y_zero, 1)


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "QLinearMatMul": qlinear_matmul,
    "QLinearConv": qlinear_conv,
}
