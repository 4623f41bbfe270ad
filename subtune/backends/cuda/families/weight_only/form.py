"""What the kernel of a few rows times a matrix of 4 or 8-bit weights knows of its workload."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

from tvm.s_tir import Schedule

from subtune.backends.cuda.families.weight_only.packing import CHUNK, ROWS, FragmentOrder
from subtune.core.kernel import ConstantTransform, NotApplicable, Packing
from subtune.core.workload import Workload, dtype_bits
from subtune.patterns.packed_product import PackedProduct, factors, packed_product, rounded_to

MAX_VECTORS = 16
_MAX_ZERO = 255  # a half holds 1024 and that exactly
_HALVES = ("float16", "bfloat16")
_RUN = 32
"""k of one group at the least: lanes of a warp take 8 each. Groups of 16 would be two in one product."""
_COPIED = 8
"""Halves of an asynchronous copy: every row of x begins at a multiple of them."""


@dataclass(frozen=True, slots=True)
class Form:
    """y[vectors, rows] = x[vectors, length] times ((W[rows, length] - zero) * scale), sums in float32.

    Attributes:
        group: k that share a scale; 0: a row does.
        zero: of unsigned weights, the number that stands for 0; -1: the parameter `zeros` has those of groups.
        dtype: of x, or what it is rounded to where it `is_wide`, float32. `scale_dtype`: of the scales.
        x, packed, scale, zeros: parameters of the function; `zeros` is -1 where there are none.
    """

    rows: int
    length: int
    vectors: int
    bits: int
    group: int
    zero: int
    dtype: str
    scale_dtype: str
    x: int
    packed: int
    scale: int
    zeros: int
    packed_dtype: str = "uint8"
    is_wide: bool = False

    @property
    def chunks(self) -> int:
        return ceil(self.length / CHUNK)

    def order(self, block_rows: int) -> FragmentOrder:
        """How the weights lie, with as many rows as make whole blocks."""
        tiles = ceil(self.rows / block_rows) * (block_rows // ROWS)
        return FragmentOrder(self.rows, self.length, self.bits, tiles, self.packed_dtype == "int8")

    def packings(self, block_rows: int, groups: int) -> tuple[tuple[int, ConstantTransform], ...]:
        """Of the weights, and of what every group has: [tile][8 rows g][groups][row g, row g + 8], padded by zeros.

        Args:
            groups: of a row, with those that pad.
        """
        order = self.order(block_rows)
        if not self.group:
            return ((self.packed, order),)
        lie = Packing(((order.tiles, 2, 8), (groups,)), (0, 2, 3, 1))
        found: list[tuple[int, ConstantTransform]] = [(self.packed, order), (self.scale, lie)]
        if self.zeros >= 0:
            found.append((self.zeros, lie))
        return tuple(found)


def few_rows(sch: Schedule, block_rv: Any) -> tuple[PackedProduct, str] | NotApplicable:
    """The anchor as a product with weights of few bits, and the narrowest type that x has on its way to it."""
    found = packed_product(sch, block_rv)
    if isinstance(found, NotApplicable):
        return found
    block = sch.get(block_rv)
    both = factors(block, block.body.indices[-1])
    if isinstance(both, NotApplicable):
        return both
    return found, rounded_to(both[0])


def form_of(found: tuple[PackedProduct, str], workload: Workload) -> Form | NotApplicable:
    """What `few_rows` found as this kernel computes it, or why it cannot."""
    (product, dtype), args = found, workload.args
    if product.x < 0:
        return NotApplicable("what is multiplied is computed on the way")
    given, scale_dtype, packed = (args[i].dtype for i in (product.x, product.scale, product.packed))
    if dtype not in _HALVES or given not in (dtype, "float32"):
        return NotApplicable(f"rows of {given}, as {dtype}")
    if product.rows > MAX_VECTORS:
        return NotApplicable(f"{product.rows} rows, at most {MAX_VECTORS}: with more, weights are better made halves")
    constants = [i for i in (product.packed, product.scale, product.zero) if i >= 0]
    if not all(args[i].is_constant for i in constants):
        return NotApplicable("the weights are no constants, which could be packed")
    group = 0 if product.group >= product.length else product.group
    if group and (group < _RUN or group & (group - 1) or (group > CHUNK and product.length % group)):
        return NotApplicable(f"groups of {group} of {product.length}: whole ones, powers of two from {_RUN} on")
    if product.length % _COPIED:
        return NotApplicable(f"rows of {product.length}, no multiple of {_COPIED}")
    zero = product.point + (128 if packed == "int8" else 0) if product.zero < 0 else -1
    if product.zero < 0 and not 0 <= zero <= _MAX_ZERO:
        return NotApplicable(f"weights have their zero at {product.point}")
    if product.zero >= 0 and (packed == "int8" or dtype_bits(args[product.zero].dtype) != 8):
        return NotApplicable("zero points of another type than the weights")
    if scale_dtype not in ("float32", *_HALVES):
        return NotApplicable(f"scales of {scale_dtype}")
    return Form(
        product.columns, product.length, product.rows, product.bits, group, zero, dtype, scale_dtype, product.x,
        product.packed, product.scale, product.zero, packed, given == "float32",
    )  # fmt: skip
