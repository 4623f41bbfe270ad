"""QuantizeLinear to float8e4m3fn and DequantizeLinear from it: floats of 8 bits, with a scale and no zero point.

quantize(x, s)   = e4m3(x / s)      rounded to the nearest, halves to even; what is too large becomes 448
dequantize(q, s) = float32(q) * s
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax

from subtune.core.numerics import FLOAT8
from subtune.frontends.onnx.ops.node import Expr, Node, array_const, axis_in, rank, shape
from subtune.frontends.onnx.ops.quantize import SCALES, scale_at


def quantized_float8(node: Node) -> Expr:
    """The call of Relax, whose zero point stands for none."""
    if node.attr("saturate", 1) != 1:
        node.refuse(f"quantises to {FLOAT8} without saturation (saturate=0), which is not supported")
    axis, scale, zero = _parameters(node)
    x = node.cast(node.x, "float32")
    return node.emit(relax.op.quantize(x, scale, zero, axis=axis, out_dtype=FLOAT8))


def dequantized_float8(node: Node) -> Expr:
    """float32, of float8e4m3fn."""
    axis, scale, zero = _parameters(node)
    return node.emit(relax.op.dequantize(node.x, scale, zero, axis=axis, out_dtype="float32"))


def _parameters(node: Node) -> tuple[int, Expr, Any]:
    """The axis, the scale in float32, and zeros."""
    x = node.x
    if node.attr("block_size", 0) or node.attr("precision", 0):
        node.refuse(f"has block_size or precision beside {FLOAT8}, which is not supported")
    scales = prod(shape(node.need(1)))
    axis = 0 if scales == 1 else axis_in(node.attr("axis", 1), rank(x))
    scale = scale_at(node, 1, 1 if scales == 1 else shape(x)[axis], SCALES)
    if node.get(2) is not None:
        points = node.known(2)
        if node.type_of(2) != FLOAT8 or points is None or np.any(points.astype(np.float32)):
            node.refuse(f"has a zero point beside {FLOAT8} that is not 0 of that type")
    dims = () if scales == 1 else (scales,)
    known = node.known(1)
    if known is not None:
        value: Expr = array_const(known.astype(np.float32).reshape(dims))
    else:
        value = node.emit(relax.op.reshape(node.cast(scale, "float32"), dims))
    return axis, value, array_const(np.zeros(dims, np.int8))
