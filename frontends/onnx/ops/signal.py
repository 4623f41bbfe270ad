"""Fourier transforms as products with constant matrices: exact for any length, quadratic in it."""

from __future__ import annotations

import numpy as np
from tvm import relax

from subtune.frontends.onnx.ops.linear import product
from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, dtype, rank, shape

_MAX_LENGTH = 4096


def _transformed(node: Node, x: Expr, count: int, bins: int, inverse: bool = False) -> Expr:
    """x (…, n, 1 or 2) -> (…, bins, 2): the transform of length `count`, or its inverse, over the next to last axis."""
    given, parts = shape(x)[-2:]
    if count > _MAX_LENGTH:
        node.refuse(f"transforms {count} points, more than {_MAX_LENGTH}")
    used = min(given, count)
    x = slice_axis(node, x, rank(x) - 2, 0, used)
    angle = -2 * np.pi / count * (np.outer(np.arange(used), np.arange(bins)) % count)
    cos, sin = (np.cos(angle) / count, -np.sin(angle) / count) if inverse else (np.cos(angle), np.sin(angle))
    # One matrix for real and imaginary parts together: rows (n, part), columns (bin, part).
    matrix = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], axis=1)
    flat = node.emit(relax.op.reshape(x, (*shape(x)[:-2], used * parts)))
    y = product(node, flat, const(matrix.reshape(used * parts, bins * 2), dtype(x)))
    return node.emit(relax.op.reshape(y, (*shape(x)[:-2], bins, 2)))


def dft(node: Node) -> Expr:
    """The last axis holds real and imaginary parts. Since opset 20 the axis is an input."""
    x = node.x
    axis = (-2 if node.get(2) is None else node.ints(2, "its axis")[0]) if node.opset >= 20 else node.attr("axis", 1)
    axis = axis_in(axis, rank(x))
    onesided = bool(node.attr("onesided", 0))
    count = shape(x)[axis] if node.get(1) is None else node.ints(1, "its length")[0]
    inverse = bool(node.attr("inverse", 0))
    if axis == rank(x) - 1:
        node.refuse("transforms its parts axis")
    if inverse and onesided:
        node.refuse("inverts half a transform")
    order = [a for a in range(rank(x)) if a not in (axis, rank(x) - 1)] + [axis, rank(x) - 1]
    moved = node.emit(relax.op.permute_dims(x, order))
    bins = count // 2 + 1 if onesided else count
    y = _transformed(node, moved, count, bins, inverse)
    back = [order.index(a) for a in range(rank(x))]
    return relax.op.permute_dims(y, back)


def stft(node: Node) -> Expr:
    """Frames of the signal (batch, n, 1), windowed and transformed."""
    x, window = node.x, node.get(2)
    step = node.ints(1, "its frame step")[0]
    given = node.get(3) is not None
    length = node.ints(3, "its frame length")[0] if given else shape(node.need(2))[0]
    if window is not None and shape(window)[0] != length:
        node.refuse("has a window shorter than its frames")
    batch, n, parts = shape(x)
    frames = (n - length) // step + 1
    at = np.arange(frames)[:, None] * step + np.arange(length)[None, :]
    framed = node.emit(relax.op.take(x, const(at.reshape(-1), "int64"), axis=1, mode="clip"))
    framed = node.emit(relax.op.reshape(framed, (batch, frames, length, parts)))
    if window is not None:
        framed = node.emit(relax.op.multiply(framed, relax.op.reshape(window, (length, 1))))
    bins = length // 2 + 1 if node.attr("onesided", 1) else length
    return _transformed(node, framed, length, bins)


CONVERTERS: dict[str, Converter] = {"DFT": dft, "STFT": stft}
