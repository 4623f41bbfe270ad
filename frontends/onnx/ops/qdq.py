"""QuantizeLinear and DequantizeLinear, of one scale, one for each position of an axis, or one for each block along it.

Both compute in float32 as ONNX Runtime's kernels do, whatever type the scales have, and round what they give once. Only
where `precision` says so, and where scales are bfloat16, which ONNX Runtime has not, is the quotient rounded as well.

The integers of 4 and 2 bits are those of `narrow`; floats of 8 and 4 bits are those of `float8`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from subtune.frontends.onnx.ops.float8 import dequantized_floats, quantized_floats
from subtune.frontends.onnx.ops.granularity import elementwise, half_of_quotient, index_of, named, parameters, ratio_in
from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.narrow import CARRIERS, INTEGERS, Narrow, limits_of
from subtune.frontends.onnx.ops.node import (
    Converter,
    Expr,
    Node,
    array_const,
    const,
    dtype,
    only_dtypes,
)
from subtune.frontends.onnx.ops.quantize import BYTES, SCALES, bounded, dequantised, quantise
from subtune.frontends.onnx.ops.small_floats import SMALL_FLOATS

_WORDS = ("int16", "uint16")
_BEYOND = 2.0**20
"""More than any of these integers, and held exactly by float32."""


def quantize_linear(node: Node) -> Any:
    """saturate(round_half_even(x / scale) + zero)"""
    x = node.x
    only_dtypes(node, x, (*SCALES, "int32"))
    to = named(node, "output_dtype", "uint8")
    if node.get(2) is not None:
        if node.attr("output_dtype", 0) and node.type_of(2) != to:
            node.refuse(f"has a zero point of dtype {node.type_of(2)} and output_dtype {to}")
        to = node.type_of(2)
    if to in SMALL_FLOATS:
        return Narrow(quantized_floats(node, to), to)
    if to not in (*BYTES, *_WORDS, *INTEGERS):
        node.refuse(f"quantises to {to}, which is not supported")
    axis, scale, zero = parameters(node, x, to)
    carrier, (low, high) = CARRIERS.get(to, to), limits_of(to)
    half = half_of_quotient(node)
    size = node.attr("block_size", 0)
    if size or half:
        y = elementwise(node, x, scale, zero, index_of(axis, size, scale), _quotient(half, low, high, carrier))
        return Narrow(y, to) if to in CARRIERS else y
    y = quantise(node, x, scale, zero, carrier, axis)
    if to not in CARRIERS:
        return y
    least, most = (const(limit, carrier) for limit in (low, high))
    return Narrow(node.emit(relax.op.maximum(relax.op.minimum(y, most), least)), to)


def _quotient(half: str, low: int, high: int, to: str) -> Callable[[Any, Any, Any], Any]:
    def value(x: Any, scale: Any, zero: Any) -> Any:
        ratio = ratio_in(half, x, scale)
        whole = tirx.nearbyint(bounded(ratio, -_BEYOND, _BEYOND)).astype("int32") + zero
        least, most = tirx.const(low, "int32"), tirx.const(high, "int32")
        return tirx.max(tirx.min(whole, most), least).astype(to)

    return value


def dequantize_linear(node: Node) -> Expr:
    """scale * (x - zero), rounded to the type of the output."""
    x, of = node.x, node.type_of(0)
    if of not in (*BYTES, *_WORDS, "int32", *CARRIERS):
        node.refuse(f"dequantises {of}, which is not supported")
    to = named(node, "output_dtype", dtype(node.need(1)))
    if to not in SCALES:
        node.refuse(f"dequantises to {to}, which is not supported")
    if of in SMALL_FLOATS:
        return node.cast(dequantized_floats(node, of), to)
    axis, scale, zero = parameters(node, x, of)
    if not (size := node.attr("block_size", 0)):
        return node.cast(dequantised(node, x, scale, zero, axis), to)
    if all(value is None or node.known(i) is not None for i, value in enumerate((x, scale, zero))):
        return node.cast(dequantised_blocks(node, x, scale, zero, axis, size), to)

    def value(x: Any, scale: Any, zero: Any) -> Any:
        return (x.astype("int32") - zero).astype("float32") * scale

    return node.cast(elementwise(node, x, scale, zero, index_of(axis, size, scale), value), to)


def dequantised_blocks(node: Node, x: Expr, scale: Expr, zero: Expr | None, axis: int, size: int) -> Expr:
    """Weights with parameters of every block of `size` along `axis`, as one relax.dequantize of a row for each block.

        reshape(dequantize(x as [blocks, size], scale, zero, axis=0))

    That is how kernels of products with packed weights find them. All operands are constants.
    """
    values, scales = np.moveaxis(_array(node, x), axis, -1), np.moveaxis(_array(node, scale), axis, -1)
    extent, count = values.shape[-1], scales.shape[-1]
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, count * size - extent)])
    points = np.zeros(scales.size, values.dtype) if zero is None else np.moveaxis(_array(node, zero), axis, -1)
    rows = (padded.reshape(-1, size), scales.reshape(-1), points.reshape(-1))
    y = node.emit(relax.op.dequantize(*map(array_const, rows), axis=0, out_dtype="float32"))
    y = node.emit(relax.op.reshape(y, padded.shape))
    last = values.ndim - 1
    y = slice_axis(node, y, last, 0, extent)
    order = [*range(axis), last, *range(axis, last)]
    return y if axis == last else node.emit(relax.op.permute_dims(y, order))


def _array(node: Node, value: Expr) -> np.ndarray:
    found = node.arrays.get(value) if isinstance(value, relax.Var) else value.value.numpy()
    assert found is not None, "known"
    return np.asarray(found)


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
}
