"""MatMulNBits of the domain com.microsoft: a product with weights of 2, 4 or 8 bits in blocks along the summed axis."""

from __future__ import annotations

from math import prod

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops import linear
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, array_const, dtype, is_float, rank, shape
from subtune.frontends.onnx.ops.qdq import dequantised_blocks

_BITS = (2, 4, 8)


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Integers from bytes that hold several along the last axis, the first in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return parts.reshape(*packed.shape[:-1], -1)


def matmul_nbits(node: Node) -> Expr:
    """A [..., K] by scale * (B - zero), B [N, K] packed as [N, blocks, bytes of a block]; then a bias.

    ONNX Runtime may round A to int8 first where `accuracy_level` is 4; here A stays as it is.
    """
    a = node.x
    if not is_float(a) or dtype(a) == "float64":
        node.refuse(f"has dtype {dtype(a)}, which is not supported")
    y = linear.product(node, a, node.cast(_weights(node), dtype(a)))
    bias = node.get(5)
    if bias is None:
        return y
    if dtype(bias) != dtype(a) or shape(bias) != shape(y)[-1:]:
        node.refuse(f"has a bias of {dtype(bias)} and shape {list(shape(bias))} for {list(shape(y))}")
    return relax.op.add(y, bias)


def _weights(node: Node) -> Expr:
    """scale * (B - zero) as [K, N] in float32."""
    rows, columns, bits, size = (int(node.attr(name, 0)) for name in ("N", "K", "bits", "block_size"))
    bits = bits or 4
    if bits not in _BITS or size < 16 or size & (size - 1) or node.attr("weight_prepacked", 0):
        node.refuse(f"has weights of {bits} bits in blocks of {size}, in a form that is not supported")
    if rank(node.x) == 0 or shape(node.x)[-1] != columns:
        node.refuse(f"multiplies shapes {list(shape(node.x))} and {[columns, rows]}")
    blocks = -(-columns // size)
    bytes_of = _sized(node, 1, (rows, blocks, size * bits // 8), "weights")
    if bytes_of.dtype != np.uint8:
        node.refuse(f"has weights of dtype {bytes_of.dtype}")
    scales = _sized(node, 2, (rows, blocks), "scales")
    if not np.isfinite(scales.astype("float32")).all():
        node.refuse("has a scale that is not finite")
    values = unpacked(bytes_of, bits).reshape(rows, blocks * size)[:, :columns]
    zero = _zero_points(node, rows, blocks, bits)
    groups = node.known(4)
    if node.get(4) is not None and groups is None:
        node.array(4, "its groups")
    if groups is None and zero.dtype == np.uint8:
        q, scale, points = (array_const(part) for part in (values, scales.astype("float32"), zero))
        y = dequantised_blocks(node, q, scale, points, 1, size)
        return node.emit(relax.op.permute_dims(y, [1, 0]))
    at = np.arange(columns) // size if groups is None else groups.reshape(-1)
    if at.shape != (columns,) or at.min() < 0 or at.max() >= blocks:
        node.refuse(f"has groups of shape {list(at.shape)} up to {at.max()} for {columns} columns in {blocks} blocks")
    wide = values.astype("float32") - zero.astype("float32")[:, at]
    return array_const(np.ascontiguousarray((wide * scales.astype("float32")[:, at]).T))


def _zero_points(node: Node, rows: int, blocks: int, bits: int) -> np.ndarray:
    """[N, blocks], as uint8, or as floats where the model has floats; the middle of the range if omitted."""
    if node.get(3) is None:
        return np.full((rows, blocks), 2 ** (bits - 1), np.uint8)
    if is_float(node.need(3)):
        return _sized(node, 3, (rows, blocks), "zero points")
    packed = _sized(node, 3, (rows, -(-blocks * bits // 8)), "zero points")
    if packed.dtype != np.uint8:
        node.refuse(f"has zero points of dtype {packed.dtype}")
    return unpacked(packed, bits)[:, :blocks]


def _sized(node: Node, index: int, dims: tuple[int, ...], what: str) -> np.ndarray:
    """Input `index`, a constant of as many elements as `dims` has."""
    array = node.array(index, f"its {what}")
    if array.size != prod(dims):
        node.refuse(f"has {what} of shape {list(array.shape)}, not {list(dims)}")
    return array.reshape(dims)


CONVERTERS: dict[str, Converter] = {"MatMulNBits": matmul_nbits}
