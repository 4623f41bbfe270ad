"""What policies and templates know of a contraction that is a matrix times a few vectors."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from subtune.core.kernel import NotApplicable
from subtune.patterns.contraction import Contraction

MAX_VECTORS = 8


@dataclass(frozen=True, slots=True)
class Gemv:
    """`rows` x `length` the matrix, `vectors` how many it is multiplied with."""

    rows: int
    length: int
    vectors: int
    is_across: bool
    """The matrix is contiguous along its rows, as [k, n] is."""
    is_swapped: bool
    """The matrix is the first operand: its rows are m, the vectors n."""


def gemv(info: Contraction) -> Gemv | NotApplicable:
    """The product as a matrix with few vectors."""
    if info.of_role("batch") or info.per_group:
        return NotApplicable("a batch of products")
    if info.axes[-1].role != "k" or len(info.of_role("k")) != 1 or any(info.a.windows) or any(info.b.windows):
        return NotApplicable("not a matrix product")
    m, n, k = prod(axis.extent for axis in info.of_role("m")), info.n.extent, info.axes[-1].extent
    if m <= MAX_VECTORS:
        return Gemv(n, k, m, info.b.axes[-1] == info.n.index, False)
    if n <= MAX_VECTORS and info.a.axes[-1] == info.axes[-1].index:
        return Gemv(m, k, n, False, True)
    return NotApplicable(f"{min(m, n)} vectors, at most {MAX_VECTORS}")
