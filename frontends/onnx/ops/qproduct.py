"""Quantised matrix products of the domain com.microsoft: exact sums in int32, then scaled."""

from __future__ import annotations

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.linear import integer_product
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, dtype, only_dtypes, rank, shape
from subtune.frontends.onnx.ops.quantize import (
    BYTES,
    dynamic_quantize_linear,
    factor_of,
    rounded,
    scale_at,
    scaled,
    zero_at,
)


def qgemm(node: Node) -> Expr:
    """(A' B' + C) * (alpha * a_scale * b_scale / y_scale), rounded, plus y_zero; without the last two, float32."""
    a, b, c, y_zero = node.need(0), node.need(3), node.get(6), node.get(8)
    if rank(a) != 2 or rank(b) != 2:
        node.refuse(f"multiplies ranks {rank(a)} and {rank(b)}")
    if (node.get(7) is None) != (y_zero is None):
        node.refuse("has an output scale or zero point without the other")
    channels = shape(b)[0 if node.attr("transB", 0) else 1]
    a_zero, b_zero = zero_at(node, 2, dtype(a)), zero_at(node, 5, dtype(b), channels)
    a = node.emit(relax.op.permute_dims(a, [1, 0])) if node.attr("transA", 0) else a
    b = node.emit(relax.op.permute_dims(b, [1, 0])) if node.attr("transB", 0) else b
    acc = _product(node, a, b, a_zero, b_zero)
    if c is not None:
        only_dtypes(node, c, ("int32",))
        if np.broadcast_shapes(shape(acc), shape(c)) != shape(acc):
            node.refuse(f"adds shape {list(shape(c))} to {list(shape(acc))}")
        acc = node.emit(relax.op.add(acc, c))
    scales = (1, 4) if y_zero is None else (1, 4, 7)
    y = scaled(node, acc, factor_of(node, acc, scales, 1, node.attr("alpha", 1.0)))
    return y if y_zero is None else rounded(node, y, zero_at(node, 8, dtype(node.x)), dtype(y_zero))


def _product(node: Node, a: Expr, b: Expr, a_zero: Expr | None, b_zero: Expr | None) -> Expr:
    for x in (a, b):
        only_dtypes(node, x, BYTES)
    if rank(a) == 0 or rank(b) == 0 or shape(a)[-1] != shape(b)[-2 if rank(b) > 1 else 0]:
        node.refuse(f"multiplies shapes {list(shape(a))} and {list(shape(b))}")
    return integer_product(node, a, b, a_zero, b_zero)


def _with_bias(node: Node, y: Expr, index: int) -> Expr:
    bias = node.get(index)
    if bias is None:
        return y
    if dtype(bias) != "float32" or shape(bias) != shape(y)[-1:]:
        node.refuse(f"has a bias of {dtype(bias)} and shape {list(shape(bias))} for {list(shape(y))}")
    return node.emit(relax.op.add(y, bias))


def matmul_integer_to_float(node: Node) -> Expr:
    """(a - a_zero) (b - b_zero) * (a_scale * b_scale) + bias; what is of b may be one of each column."""
    a, b = node.need(0), node.need(1)
    columns = shape(b)[-1] if rank(b) > 1 else 1
    acc = _product(node, a, b, zero_at(node, 4, dtype(a)), zero_at(node, 5, dtype(b), columns))
    return _with_bias(node, scaled(node, acc, factor_of(node, acc, (2, 3), rank(acc) - 1)), 6)


def dynamic_quantize_matmul(node: Node) -> Expr:
    """`matmul_integer_to_float` of what DynamicQuantizeLinear makes of a."""
    b = node.need(1)
    only_dtypes(node, node.x, ("float32",))
    a, a_scale, a_zero = dynamic_quantize_linear(node)
    columns = shape(b)[-1] if rank(b) > 1 else 1
    acc = _product(node, a, b, a_zero, zero_at(node, 3, dtype(b), columns))
    factor = node.emit(relax.op.multiply(a_scale, scale_at(node, 2, columns)))
    return _with_bias(node, scaled(node, acc, factor), 4)


CONVERTERS: dict[str, Converter] = {
    "QGemm": qgemm,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
}
