"""A few vectors times a matrix of 4-bit weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.gemv import MAX_VECTORS
from subtune.patterns.packed_product import axes_of_sum, elements_of_block
from subtune.tir.expressions import is_load_of, is_same

RUN = 32
"""Weights of 16 bytes: rows and groups are made of whole runs."""
_MAX_ZERO = 15


@dataclass(frozen=True, slots=True)
class PackedGemv:
    """C[vectors, rows] = A[vectors, length] * ((W[rows, length] - zero) * scale[rows, length // group]), in halves.

    Weight k of a row is the unsigned nibble k % 2 of byte k // 2, the lower one first; so are those of wider integers.

    Attributes:
        a, weights, scale: parameters of the function; `scale` is -1 where there is none, and `group` 0.
    """

    rows: int
    length: int
    vectors: int
    a: int
    weights: int
    zero: int = 0
    scale: int = -1
    group: int = 0


def packed_gemv(sch: Schedule, block_rv: Any) -> PackedGemv | NotApplicable:
    """The anchor (an inlined reduction) as such a product, or why it is none."""
    block = sch.get(block_rv)
    store, axes = block.body, axes_of_sum(block)
    if isinstance(axes, NotApplicable):
        return axes
    if not isinstance(store.value, tirx.Add):
        return NotApplicable("the anchor is no sum along one axis")
    outer, n, k, extents = axes
    length = extents[k]
    product = _unrounded(store.value.b)
    if not is_load_of(store.value.a, store.buffer) or not isinstance(product, tirx.Mul):
        return NotApplicable("the anchor does not sum products")
    a, weight = _unrounded(product.a), _unrounded(product.b)
    if not isinstance(a, ir.TensorLoad):
        a, weight = weight, a
    if not isinstance(a, ir.TensorLoad) or not is_same(list(a.indices), [*outer, k]):
        return NotApplicable("no operand is vectors along k")
    group, scale, zero = 0, None, 0
    if isinstance(weight, tirx.Mul):
        scale, weight = (weight.a, weight.b) if isinstance(weight.a, ir.TensorLoad) else (weight.b, weight.a)
        group = _group(scale, n, k, length)
        if not group:
            return NotApplicable("weights are scaled, but not by group of a row")
    if isinstance(weight, tirx.Sub) and isinstance(weight.b, tirx.FloatImm):
        weight, value = weight.a, float(weight.b.value)
        zero = int(value)
        if not 0 <= value <= _MAX_ZERO or zero != value:
            return NotApplicable(f"weights have their zero at {value}")
    if not isinstance(weight, tirx.Cast) or str(weight.ty.dtype) != "float16":
        return NotApplicable("weights are not made in float16")
    packed = _packed(weight.value, n, k)
    if packed is None:
        return NotApplicable("weights are no nibbles along k")
    params = sch.mod["main"].params
    found = [next((i for i, p in enumerate(params) if x is not None and p.same_as(x.source)), -1)
             for x in (a, packed, scale)]  # fmt: skip
    halves = {str(x.source.dtype) for x in (a, scale) if x is not None}
    vectors = prod(extents[axis] for axis in outer)
    if -1 in found[:2] or (scale is not None and found[2] < 0) or halves != {"float16"}:
        return NotApplicable("operands are no float16 parameters")
    if str(store.buffer.dtype) not in ("float32", "float16"):
        return NotApplicable(f"sums of {store.buffer.dtype}")
    if length % RUN or vectors > MAX_VECTORS:
        return NotApplicable(f"{vectors} vectors of {length}: at most {MAX_VECTORS}, whole runs of {RUN}")
    return PackedGemv(extents[n], length, vectors, found[0], found[1], zero, found[2], group)


def _packed(nibble: Any, n: Any, k: Any) -> Any:
    """The load of `(packed[n, k // per] >> (k % per * 4)) & 15`, or None."""
    masked = _uncast(nibble)
    if not isinstance(masked, tirx.BitwiseAnd) or not isinstance(masked.b, tirx.IntImm) or int(masked.b) != 15:
        return None
    shifted = masked.a
    if not isinstance(shifted, tirx.RShift):
        return None
    load = _widened(shifted.a)
    if not isinstance(load, ir.TensorLoad):
        return None
    per = dtype_bits(str(load.source.dtype)) // 4
    is_shift = is_same(_uncast(shifted.b), tirx.floormod(k, per) * 4)
    return load if is_shift and is_same(list(load.indices), [n, tirx.floordiv(k, per)]) else None


def _group(scale: Any, n: Any, k: Any, length: int) -> int:
    """How many neighbours of a row one element of `scale` is for; 0 where that is not how it is read."""
    if not isinstance(scale, ir.TensorLoad):
        return 0
    if len(scale.indices) == 1:
        return length if is_same(scale.indices[0], n) else 0
    group = elements_of_block(scale, n, k, length)
    return group if group == length or (group and group % RUN == 0 and length % group == 0) else 0


def _unrounded(expr: Any) -> Any:
    """Without casts to float32: half-precision factors are multiplied exactly and summed in float32."""
    while isinstance(expr, tirx.Cast) and str(expr.ty.dtype) == "float32":
        expr = expr.value
    return expr


def _uncast(expr: Any) -> Any:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    return expr


def _widened(expr: Any) -> Any:
    while isinstance(expr, tirx.Cast) and dtype_bits(str(expr.ty.dtype)) >= dtype_bits(str(expr.value.ty.dtype)):
        expr = expr.value
    return expr
