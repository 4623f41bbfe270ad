"""A subgraph of a dynamic model as a program calls it: kernels for any of its extents, and when each is called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from subtune.core.dims import Dim
from subtune.core.dispatch import Tree

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc


@dataclass(frozen=True, slots=True)
class Variant:
    """`func` is flat; its first parameters are numbers of tiles, `ceil(extent / granule)` of each extent, as int64."""

    func: PrimFunc
    granules: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Variants:
    """`extents` are polynomials in the model's symbols; `tree` compares them."""

    extents: tuple[Dim, ...]
    kernels: tuple[Variant, ...]
    tree: Tree
