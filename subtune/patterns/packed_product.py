"""A product with constant weights of 4 or 8 bits, of which each is made a float where it is multiplied.

    y[..., n] = sum_k x[..., k] * weight[n, k]
    weight[n, k] = (float(q[n, k]) - zero[n, k // group]) * scale[n, k // group]

That is what `subtune.passes.packed_weights` makes of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.tir.expressions import is_load_of, is_same

_BITS = 4


@dataclass(frozen=True, slots=True)
class PackedProduct:
    """`rows` rows of `length` elements times `columns` rows of weights.

    Of 4 bits, weight k of a row is nibble k % 2 of byte k // 2, the lower one first; of 8 bits, byte k. The last nibble
    of an odd row is not read. The last block of a row may be shorter than `group`.

    Attributes:
        x: the parameter that is multiplied, casts or not; -1 where that is computed.
        packed, scale: parameters, `packed` of uint8, or int8 for 8 bits; `scale` [columns, blocks].
        zero: the parameter of the zero points, uint8 [columns, blocks]; -1 where `point` is all of them.
        dtype: of the weights, before they are multiplied in `acc`.
        acc: the dtype of the sums.
    """

    rows: int
    columns: int
    length: int
    bits: int
    group: int
    x: int
    packed: int
    scale: int
    zero: int = -1
    point: int = 0
    dtype: str = "float32"
    acc: str = "float32"

    @property
    def blocks(self) -> int:
        """Of a row."""
        return -(-self.length // self.group)

    @property
    def weight_bytes(self) -> int:
        """Without scales and zero points."""
        return self.columns * -(-self.length * self.bits // 8)


def packed_product(sch: Schedule, block_rv: Any) -> PackedProduct | NotApplicable:
    """The anchor (an inlined reduction) as such a product, or why it is none."""
    block = sch.get(block_rv)
    axes = axes_of_sum(block)
    if isinstance(axes, NotApplicable):
        return axes
    outer, n, k, extents = axes
    found = factors(block, n)
    if isinstance(found, NotApplicable):
        return found
    x, weight = found
    parts = _parts(weight, n, k, extents[k])
    if isinstance(parts, NotApplicable):
        return parts
    packed, scale, zero, point, group = parts
    params = list(sch.mod["main"].params)

    def param(load: Any) -> int:
        return next((i for i, p in enumerate(params) if load is not None and p.same_as(load.source)), -1)

    if param(packed) < 0 or param(scale) < 0 or (zero is not None and param(zero) < 0):
        return NotApplicable("the weights are no parameters")
    bits = 8 if _is_byte(packed, n, k) else _BITS
    plain = _unconverted(x)
    is_plain = isinstance(plain, ir.TensorLoad) and is_same(list(plain.indices), [*outer, k])
    return PackedProduct(
        prod(extents[axis] for axis in outer), extents[n], extents[k], bits, group, param(plain) if is_plain else -1,
        param(packed), param(scale), param(zero), point, rounded_to(weight), str(block.body.buffer.dtype),
    )  # fmt: skip


def factors(block: Any, n: Any) -> tuple[Any, Any] | NotApplicable:
    """x and the weight of an anchor's products, as expressions; `n` indexes the weight's scale alone."""
    store = block.body
    product = store.value.b if isinstance(store.value, tirx.Add) and is_load_of(store.value.a, store.buffer) else None
    product = product.value if isinstance(product, tirx.Cast) else product
    if not isinstance(product, tirx.Mul):
        return NotApplicable("the anchor does not sum products")
    first, second = product.a, product.b
    if not isinstance(_unconverted(second), tirx.Mul):
        first, second = second, first
    if not isinstance(_unconverted(second), tirx.Mul):
        return NotApplicable("no operand is scaled")
    return first, second


def axes_of_sum(block: Any) -> tuple[list[Any], Any, Any, dict[Any, int]] | NotApplicable:
    """The axes of one operand alone, of the other alone, the one that is summed, and all extents."""
    axes = list(block.iter_vars)
    reduced = [iv for iv in axes if int(iv.iter_type) == tirx.IterVar.CommReduce]
    if len(reduced) != 1 or not isinstance(block.body, tirx.BufferStore):
        return NotApplicable("the anchor is no sum along one axis")
    if not all(isinstance(iv.dom.extent, tirx.IntImm) for iv in axes):
        return NotApplicable("the anchor has symbolic extents")
    k, indices = reduced[0].var, list(block.body.indices)
    extents = {iv.var: int(iv.dom.extent) for iv in axes}
    if not indices or set(indices) != set(extents) - {k} or len(extents) != len(indices) + 1:
        return NotApplicable("the anchor's output is not indexed by its own axes")
    *outer, n = indices
    return outer, n, k, extents


def _parts(weight: Any, n: Any, k: Any, length: int) -> tuple[Any, Any, Any, int, int] | NotApplicable:
    """The loads of bits, scale and zero point (None where that is a number), the number, and a block's elements."""
    product = _unconverted(weight)
    whole, scale = product.a, product.b
    if not isinstance(scale, ir.TensorLoad) or not _is_float(scale):
        return NotApplicable("the weights are not scaled")
    group = elements_of_block(scale, n, k, length)
    if not group:
        return NotApplicable("weights are scaled, but not by block of a row")
    zero, point = None, 0
    if isinstance(whole, tirx.Sub) and isinstance(whole.b, tirx.FloatImm):
        whole, point = whole.a, int(whole.b.value)
    elif isinstance(whole, tirx.Sub):
        whole, zero = whole.a, _unconverted(whole.b)
        if not isinstance(zero, ir.TensorLoad) or elements_of_block(zero, n, k, length) != group:
            return NotApplicable("zero points are not by block of a row")
    bits = _unconverted(whole)
    packed = bits if _is_byte(bits, n, k) else _of_nibble(bits, n, k)
    if packed is None:
        return NotApplicable("the weights are neither bytes nor nibbles along k")
    return packed, scale, zero, point, group


def _is_byte(load: Any, n: Any, k: Any) -> bool:
    is_load = isinstance(load, ir.TensorLoad) and str(load.source.dtype) in ("int8", "uint8")
    return is_load and is_same(list(load.indices), [n, k])


def _of_nibble(masked: Any, n: Any, k: Any) -> Any:
    """The load of `(packed[n, k // 2] >> (k % 2 * 4)) & 15`, or None."""
    if not isinstance(masked, tirx.BitwiseAnd) or not isinstance(masked.b, tirx.IntImm) or int(masked.b) != 15:
        return None
    shifted = masked.a
    if not isinstance(shifted, tirx.RShift) or not isinstance(shifted.a, ir.TensorLoad):
        return None
    shift = shifted.b.value if isinstance(shifted.b, tirx.Cast) else shifted.b
    load = shifted.a
    is_nibble = str(load.source.dtype) == "uint8" and is_same(shift, tirx.floormod(k, 2) * 4)
    return load if is_nibble and is_same(list(load.indices), [n, tirx.floordiv(k, 2)]) else None


def elements_of_block(load: Any, n: Any, k: Any, length: int) -> int:
    """How many neighbours of a row one element of `load` is for; 0 where that is not how it is read."""
    if len(load.indices) != 2 or not is_same(load.indices[0], n):
        return 0
    by = load.indices[1]
    if isinstance(by, tirx.IntImm) and int(load.source.shape[1]) == 1:
        return length
    is_block = isinstance(by, tirx.FloorDiv) and is_same(by.a, k) and isinstance(by.b, tirx.IntImm)
    return int(by.b) if is_block else 0


def _is_float(expr: Any) -> bool:
    return "float" in str(expr.ty.dtype)


def _unconverted(expr: Any) -> Any:
    """Without casts to a floating type."""
    while isinstance(expr, tirx.Cast) and _is_float(expr):
        expr = expr.value
    return expr


def rounded_to(factor: Any) -> str:
    """The narrowest type that a factor has on its way to the product."""
    found = [str(factor.ty.dtype)]
    while isinstance(factor, tirx.Cast):
        factor = factor.value
        found.append(str(factor.ty.dtype))
    return next((dtype for dtype in found if dtype != "float32"), "float32")
