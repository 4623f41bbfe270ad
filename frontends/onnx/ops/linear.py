"""Matrix products."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, const, dtype, is_float, rank, shape


def product(node: Node, a: Expr, b: Expr) -> Expr:
    """a @ b with numpy's broadcasting; 16-bit floats accumulate in float32, as ONNX Runtime does."""
    if dtype(a) != dtype(b):
        node.refuse(f"multiplies {dtype(a)} by {dtype(b)}")
    if rank(a) == 0 or rank(b) == 0 or shape(a)[-1] != shape(b)[-2 if rank(b) > 1 else 0]:
        node.refuse(f"multiplies shapes {list(shape(a))} and {list(shape(b))}")
    if dtype(a) not in ("float16", "bfloat16"):
        return node.emit(relax.op.matmul(a, b))
    return node.cast(node.emit(relax.op.matmul(a, b, out_dtype="float32")), dtype(a))


def matmul(node: Node) -> Expr:
    return product(node, node.need(0), node.need(1))


def gemm(node: Node) -> Expr:
    """alpha * A' B' + beta * C."""
    a, b, c = node.need(0), node.need(1), node.get(2)
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    if not is_float(a) and (alpha != int(alpha) or beta != int(beta)):
        node.refuse(f"scales integers by {alpha} and {beta}")
    if node.attr("transA", 0):
        a = node.emit(relax.op.permute_dims(a, [1, 0]))
    if node.attr("transB", 0):
        b = node.emit(relax.op.permute_dims(b, [1, 0]))
    y = product(node, a, b)
    if alpha != 1.0:
        y = node.emit(relax.op.multiply(y, const(alpha, dtype(y))))
    if c is None or beta == 0.0:
        return y
    if np.broadcast_shapes(shape(y), shape(c)) != shape(y):
        node.refuse(f"adds shape {list(shape(c))} to {list(shape(y))}")
    scaled = c if beta == 1.0 else node.emit(relax.op.multiply(c, const(beta, dtype(c))))
    return relax.op.add(y, scaled)


def einsum(node: Node) -> Expr:
    equation = node.attr("equation").replace(" ", "")
    return relax.op.einsum(node.every, equation)


def _zero_shifted(node: Node, x: Expr, zero: Expr | None, per_row: bool) -> Expr:
    """x - zero in int32; a vector of zero points is per row of the left, per column of the right operand."""
    wide = node.cast(x, "int32")
    if zero is None:
        return wide
    zero32 = node.cast(zero, "int32")
    if rank(zero) == 1 and per_row:
        zero32 = node.emit(relax.op.reshape(zero32, (prod(shape(zero)), 1)))
    return node.emit(relax.op.subtract(wide, zero32))


def integer_product(node: Node, a: Expr, b: Expr, a_zero: Expr | None, b_zero: Expr | None) -> Expr:
    left, right = _zero_shifted(node, a, a_zero, True), _zero_shifted(node, b, b_zero, False)
    return node.emit(relax.op.matmul(left, right, out_dtype="int32"))


def matmul_integer(node: Node) -> Expr:
    return integer_product(node, node.need(0), node.need(1), node.get(2), node.get(3))


CONVERTERS: dict[str, Converter] = {
    "MatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "MatMulInteger": matmul_integer,
}
