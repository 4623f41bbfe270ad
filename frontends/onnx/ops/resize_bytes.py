"""Bilinear interpolation of bytes, as in a QOperator model: in float32, and what comes out is cut off, not rounded.

That is what ONNX Runtime does with uint8 and int8 (`UpsampleBilinear` in upsample.h): coordinates and weights of
float32, four products added in one order. It is repeated here step by step: a sum just below a whole number is cut off
to the number below it. With half_pixel_symmetric a result may be one step off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te

from subtune.frontends.onnx.ops.node import Expr, Node, const, dtype, shape
from subtune.frontends.onnx.ops.quantize import bounded

_MOST = 512.0
"""More than any byte."""
_EXACT = 2.0**-8
"""Products of a byte and two multiples of this, and sums of them, are exact in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """What every output position along an axis reads: two positions, each with its weight in float32."""

    first: np.ndarray
    second: np.ndarray
    of_first: np.ndarray
    of_second: np.ndarray


def pairs(origin: np.ndarray, extent: int) -> Pairs:
    """Of the coordinates `origin` (float32) in an axis of `extent` positions."""
    at = np.clip(origin.astype(np.float32), np.float32(0), np.float32(extent - 1))
    first = at.astype(np.int32)
    second = np.minimum(first + 1, extent - 1)
    half = np.where(first == second, np.float32(0.5), np.float32(0))
    of_first, of_second = np.abs(at - second.astype(np.float32)), np.abs(at - first.astype(np.float32))
    return Pairs(first, second, np.where(half, half, of_first), np.where(half, half, of_second))


def bilinear(node: Node, x: Expr, axes: Sequence[int], rows: Pairs, columns: Pairs) -> Expr:
    """Of the image whose rows and columns are the two `axes` of x, which is of uint8 or int8."""
    vertical, horizontal = axes
    dims = [
        len(rows.first) if a == vertical else len(columns.first) if a == horizontal else d
        for a, d in enumerate(shape(x))
    ]
    weights = (rows.of_first, rows.of_second, columns.of_first, columns.of_second)
    is_exact = all(np.array_equal(np.rint(one / _EXACT) * _EXACT, one) for one in weights)
    to = dtype(x)

    def whole(t: Any, *tables: Any) -> Any:
        y1, y2, by1, by2, x1, x2, bx1, bx2 = tables

        def one(*i: Any) -> Any:
            row, column = i[vertical], i[horizontal]

            def term(y: Any, by: Any, x: Any, bx: Any) -> Any:
                at = list(i)
                at[vertical], at[horizontal] = y(row), x(column)
                product = bx(column) * by(row) * t(*at).astype("float32")
                return product if is_exact else bounded(product, -_MOST, _MOST)

            total = term(y1, by1, x1, bx1) + term(y1, by1, x2, bx2)
            return (total + term(y2, by2, x1, bx1) + term(y2, by2, x2, bx2)).astype("int32").astype(to)

        return te.compute(dims, one, name="interpolate")

    tables = (rows.first, rows.second, *weights[:2], columns.first, columns.second, *weights[2:])
    return node.te(whole, x, *(const(table, str(table.dtype)) for table in tables))


def bilinear_of_images(node: Node, x: Expr, rows: Pairs, columns: Pairs) -> Expr:
    """Of (N, C, H, W), computed channels last: a vector is of channels, and weights are single numbers."""
    last = node.emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
    return node.emit(relax.op.permute_dims(bilinear(node, last, (1, 2), rows, columns), [0, 3, 1, 2]))
