"""A subgraph of a dynamic model as a program calls it: kernels for any of its extents, and when each is called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from subtune.core.dims import Dim
from subtune.core.dispatch import Tree

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


GREATEST = "subtune.greatest"
"""Attribute of the PrimFunc of a kernel of dynamic shapes: its first parameters' values at the largest instance."""


@dataclass(frozen=True, slots=True)
class Variant:
    """`func` is as `Backend.comparable` leaves it; its first parameters are numbers of tiles, `ceil(extent / granule)`
    of each extent, as int64.

    With `knows_extents` the extents follow. Its buffers are those of the subgraph's arguments that `arguments` names:
    kernels may want a constant in different layouts. Rows are computed past the last one, as many as make whole tiles.
    """

    func: PrimFunc
    granules: tuple[int, ...]
    knows_extents: bool
    arguments: tuple[int, ...]

    @property
    def leading(self) -> int:
        """Parameters before the buffers."""
        return len(self.granules) * (2 if self.knows_extents else 1)

    def past_end(self, extents: Sequence[int]) -> Fraction:
        """How large a part of an instance's rows it computes past the last one, at most."""
        parts = [
            Fraction(granule - 1, extent) for granule, extent in zip(self.granules, extents, strict=True) if extent
        ]
        return max(parts, default=Fraction(0))


@dataclass(frozen=True, slots=True)
class Variants:
    """`extents` are polynomials in the model's symbols; `tree` compares them."""

    extents: tuple[Dim, ...]
    kernels: tuple[Variant, ...]
    tree: Tree
