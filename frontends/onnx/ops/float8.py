"""QuantizeLinear to floats of 8 and 4 bits and DequantizeLinear from them.

quantize(x, s)   = rounded(x / s)      to the nearest, halves to even; what is too large becomes the largest
dequantize(q, s) = float32(q) * s

Those of float8e4m3fn with a scale and nothing else are operators of Relax, which a device may have units for. All
others are computed in float32 (`small_floats`), with zero points, blocks and all.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax, tirx

from subtune.core.numerics import FLOAT8
from subtune.frontends.onnx.ops.granularity import elementwise, half_of_quotient, index_of, parameters, ratio_in
from subtune.frontends.onnx.ops.narrow import in_float32
from subtune.frontends.onnx.ops.node import Expr, Node, array_const, axis_in, const, dtype, rank, shape
from subtune.frontends.onnx.ops.quantize import SCALES, scale_at
from subtune.frontends.onnx.ops.small_floats import rounded


def quantized_floats(node: Node, to: str) -> Expr:
    """What holds numbers of the type `to`."""
    zero, saturate = _zero(node, to), bool(node.attr("saturate", 1))
    half = half_of_quotient(node) if node.attr("precision", 0) else ""
    if _is_relaxs(node, to, zero) and saturate and not half:
        axis, scale, none = _of_relax(node)
        return node.emit(relax.op.quantize(node.cast(node.x, "float32"), scale, none, axis=axis, out_dtype=to))
    axis, scale, _ = parameters(node, node.x, to)

    def value(x: Any, scale: Any, zero: Any) -> Any:
        ratio = ratio_in(half, x, scale)
        return rounded(ratio if is_zero else _unless_zero(zero, ratio, ratio + zero), to, saturate)

    is_zero = zero is None
    at = index_of(axis, node.attr("block_size", 0), scale)
    return elementwise(node, node.x, scale, zero, at, value, "float32")


def dequantized_floats(node: Node, of: str) -> Expr:
    """float32, of numbers of the type `of`."""
    zero, size = _zero(node, of), node.attr("block_size", 0)
    if _is_relaxs(node, of, zero):
        axis, scale, none = _of_relax(node)
        x = node.x if dtype(node.x) == of else _as_float8(node, node.x)
        return node.emit(relax.op.dequantize(x, scale, none, axis=axis, out_dtype="float32"))
    axis, scale, _ = parameters(node, node.x, of)
    if node.known(0) is not None and node.known(1) is not None and zero is None:
        return array_const(_known_floats(node, axis, size))

    def value(x: Any, scale: Any, zero: Any) -> Any:
        return (x if is_zero else _unless_zero(zero, x, x - zero)) * scale

    is_zero = zero is None
    x = in_float32(node.bb, node.x)
    return elementwise(node, x, scale, zero, index_of(axis, size, scale), value, "float32")


def _zero(node: Node, of: str) -> Expr | None:
    """The zero point in float32; None where it is 0. ONNX and its reference differ on what any other one means."""
    zero = node.get(2)
    if zero is None:
        return None
    if node.type_of(2) != of:
        node.refuse(f"has a zero point of dtype {node.type_of(2)} for values of {of}")
    known = node.known(2)
    if known is None:
        return in_float32(node.bb, zero)
    if np.any(known.astype(np.float32)):
        node.refuse(f"has a zero point beside {of} that is not 0")
    return None


def _is_relaxs(node: Node, of: str, zero: Expr | None) -> bool:
    return of == FLOAT8 and zero is None and not node.attr("block_size", 0)


def _of_relax(node: Node) -> tuple[int, Expr, Expr]:
    """The axis, the scale in float32, and zeros, which stand for no zero point."""
    x = node.x
    scales = prod(shape(node.need(1)))
    axis = 0 if scales == 1 else axis_in(node.attr("axis", 1), rank(x))
    scale = scale_at(node, 1, 1 if scales == 1 else shape(x)[axis], SCALES)
    dims = () if scales == 1 else (scales,)
    known = node.known(1)
    if known is not None:
        value: Expr = array_const(known.astype(np.float32).reshape(dims))
    else:
        value = node.emit(relax.op.reshape(node.cast(scale, "float32"), dims))
    return axis, value, array_const(np.zeros(dims, np.int8))


def _as_float8(node: Node, x: Expr) -> Expr:
    """float32 that holds numbers of float8e4m3fn, as these: a product may read them."""
    none = array_const(np.zeros((), np.int8))
    return node.emit(relax.op.quantize(x, const(1.0, "float32"), none, axis=0, out_dtype=FLOAT8))


def _unless_zero(zero: Any, value: Any, moved: Any) -> Any:
    """A sum with 0 would make 0 of -0."""
    return tirx.Select(zero == tirx.const(0.0, "float32"), value, moved)


def _known_floats(node: Node, axis: int, size: int) -> np.ndarray:
    values, scales = (np.asarray(node.known(index), np.float32) for index in (0, 1))
    if size:
        whole = np.repeat(scales, size, axis)
        scales = np.take(whole, range(values.shape[axis]), axis)
    elif scales.size == 1:
        scales = scales.reshape(())
    else:
        scales = scales.reshape([-1 if a == axis else 1 for a in range(values.ndim)])
    return np.asarray(values * scales, np.float32)
