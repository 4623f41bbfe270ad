"""QuantizeLinear and DequantizeLinear, of one scale, one for each position of an axis, or one for each block along it.

Both compute in float32 as ONNX Runtime's kernels do, whatever type the scales have, and round what they give once. Only
where `precision` says so, and where scales are bfloat16, which ONNX Runtime has not, is the quotient rounded as well.

The integers of 4 and 2 bits are those of `narrow`; floats of 8 bits are those of `float8`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.core.numerics import FLOAT8
from subtune.frontends.onnx.ops.float8 import dequantized_float8, quantized_float8
from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.narrow import CARRIERS, Narrow, limits_of
from subtune.frontends.onnx.ops.node import (
    Converter,
    Expr,
    Node,
    array_const,
    axis_in,
    const,
    dtype,
    element_name,
    only_dtypes,
    rank,
    shape,
)
from subtune.frontends.onnx.ops.quantize import BYTES, SCALES, bounded, dequantised, quantise, scale_at, zero_at

_WORDS = ("int16", "uint16")
_BEYOND = 2.0**20
"""More than any of these integers, and held exactly by float32."""

Index = tuple[Any, ...]


def _channels(node: Node, x: Expr) -> tuple[int, int | None]:
    """The axis of the parameters, and how many they may be: None, of any shape, of blocks."""
    if node.attr("block_size", 0):
        axis, size = axis_in(node.attr("axis", 1), rank(x)), node.attr("block_size")
        dims = [-(-d // size) if a == axis else d for a, d in enumerate(shape(x))]
        if size < 0 or list(shape(node.need(1))) != dims:
            node.refuse(f"has parameters {list(shape(node.need(1)))} for blocks of {size} of {list(shape(x))}")
        return axis, None
    if prod(shape(node.need(1))) == 1:
        return 0, 1
    axis = axis_in(node.attr("axis", 1), rank(x))
    return axis, shape(x)[axis]


def _parameters(node: Node, x: Expr, of: str) -> tuple[int, Expr, Expr | None]:
    """The axis, the scale in float32, and the zero point.

    Scales of blocks may be 0 or negative, as quantisers of weights make them.
    """
    axis, channels = _channels(node, x)
    scale, zero = scale_at(node, 1, channels, SCALES, positive=channels is not None), zero_at(node, 2, of, channels)
    if zero is not None and prod(shape(zero)) != prod(shape(scale)):
        node.refuse(f"has a scale of shape {list(shape(scale))} and a zero point of shape {list(shape(zero))}")
    known = node.known(1)
    return axis, node.cast(scale, "float32") if known is None else array_const(known.astype("float32")), zero


def _named(node: Node, name: str, default: str) -> str:
    return element_name(node.attr(name)) if node.attr(name, 0) else default


def quantize_linear(node: Node) -> Any:
    """saturate(round_half_even(x / scale) + zero)"""
    x = node.x
    only_dtypes(node, x, (*SCALES, "int32"))
    to = _named(node, "output_dtype", "uint8")
    if node.get(2) is not None:
        if node.attr("output_dtype", 0) and node.type_of(2) != to:
            node.refuse(f"has a zero point of dtype {node.type_of(2)} and output_dtype {to}")
        to = node.type_of(2)
    if to == FLOAT8:
        return Narrow(quantized_float8(node), to)
    if to not in (*BYTES, *_WORDS, *CARRIERS):
        node.refuse(f"quantises to {to}, which is not supported")
    axis, scale, zero = _parameters(node, x, to)
    carrier, (low, high) = CARRIERS.get(to, to), limits_of(to)
    half = _half_of_quotient(node)
    size = node.attr("block_size", 0)
    if size or half:
        at = _block_index(axis, size) if size else _axis_index(axis, rank(scale))
        y = _elementwise(node, x, scale, zero, at, _quotient(half, low, high, carrier))
        return Narrow(y, to) if to in CARRIERS else y
    y = quantise(node, x, scale, zero, carrier, axis)
    if to not in CARRIERS:
        return y
    least, most = (const(limit, carrier) for limit in (low, high))
    return Narrow(node.emit(relax.op.maximum(relax.op.minimum(y, most), least)), to)


def _half_of_quotient(node: Node) -> str:
    """The half in which x is divided by the scale, or "" for float32."""
    of = _named(node, "precision", "bfloat16" if dtype(node.need(1)) == "bfloat16" else "float32")
    if of not in SCALES:
        node.refuse(f"divides in {of}, which is not supported")
    return "" if of == "float32" else of


def _quotient(half: str, low: int, high: int, to: str) -> Callable[[Any, Any, Any], Any]:
    def value(x: Any, scale: Any, zero: Any) -> Any:
        def rounded(v: Any) -> Any:
            return v.astype(half).astype("float32") if half else v

        ratio = rounded(rounded(x.astype("float32")) / rounded(scale))
        whole = tirx.nearbyint(bounded(ratio, -_BEYOND, _BEYOND)).astype("int32") + zero
        least, most = tirx.const(low, "int32"), tirx.const(high, "int32")
        return tirx.max(tirx.min(whole, most), least).astype(to)

    return value


def dequantize_linear(node: Node) -> Expr:
    """scale * (x - zero), rounded to the type of the output."""
    x, of = node.x, node.type_of(0)
    if of not in (*BYTES, *_WORDS, "int32", *CARRIERS):
        node.refuse(f"dequantises {of}, which is not supported")
    to = _named(node, "output_dtype", dtype(node.need(1)))
    if to not in SCALES:
        node.refuse(f"dequantises to {to}, which is not supported")
    if of == FLOAT8:
        return node.cast(dequantized_float8(node), to)
    axis, scale, zero = _parameters(node, x, of)
    if not (size := node.attr("block_size", 0)):
        return node.cast(dequantised(node, x, scale, zero, axis), to)
    if all(value is None or node.known(i) is not None for i, value in enumerate((x, scale, zero))):
        return node.cast(dequantised_blocks(node, x, scale, zero, axis, size), to)

    def value(x: Any, scale: Any, zero: Any) -> Any:
        return (x.astype("int32") - zero).astype("float32") * scale

    return node.cast(_elementwise(node, x, scale, zero, _block_index(axis, size), value), to)


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


def _block_index(axis: int, size: int) -> Callable[[Index], Index]:
    return lambda index: tuple(tirx.floordiv(v, size) if a == axis else v for a, v in enumerate(index))


def _axis_index(axis: int, ndim: int) -> Callable[[Index], Index]:
    """Where a scale of no dims, of one element or of one for each position of an axis is read."""
    return lambda index: (index[axis],) if ndim else ()


def _elementwise(
    node: Node, x: Expr, scale: Expr, zero: Expr | None, at: Callable[[Index], Index], of: Callable[..., Any]
) -> Expr:
    """A loop over the elements of x: `of` each, its scale, and its zero point in int32."""
    whole = node.cast(const(np.zeros(shape(scale)), "int32") if zero is None else zero, "int32")

    def loop(t: Any, s: Any, z: Any) -> Any:
        return te.compute(t.shape, lambda *i: of(t(*i), s(*at(i)), z(*at(i))), name=node.op.lower())

    return node.te(loop, x, scale, whole)


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
}
