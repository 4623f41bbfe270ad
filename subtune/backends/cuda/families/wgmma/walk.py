"""The tiles of a wgmma kernel, and how blocks walk them: which tile is where, which steps of k a block has.

Tiles are numbered along bands of `raster` rows of tiles, so that those which are computed at the same time share rows
and columns in L2. A block walks tiles `clusters` apart; those of a cluster walk together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm_view import GemmView


@dataclass(frozen=True, slots=True)
class Walk:
    """A contraction of `dtype` in tiles, on a device with `sms` multiprocessors.

    `added_steps` are those of another contraction, whose sums are added: they follow its own.
    """

    view: GemmView
    tiling: Tiling
    dtype: str
    sms: int
    added_steps: int = 0

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.tiling.cluster * self.tiling.split

    @property
    def _counts(self) -> list[int]:
        """Boxes along each group of rows."""
        return [
            ceil(self.view.groups[g].extent / rows) for g, rows in zip(self.view.rows, self.tiling.rows, strict=True)
        ]

    @property
    def _places(self) -> int:
        """Of a cluster's tiles, one below the other."""
        return ceil(prod(self._counts) / (self.tiling.cluster * self.tiling.boxes))

    @property
    def _columns(self) -> int:
        return ceil(self.view.extent(self.view.n) / self.tiling.columns)

    @property
    def tiles(self) -> int:
        """Of clusters: one of each of its blocks, or one that they share."""
        return self.view.extent(*self.view.batch) * self._places * self._columns

    @property
    def clusters(self) -> int:
        """That walk tiles; of a `fitted` kernel as many as there are places for, though tiles may be fewer."""
        if self.tiling.split > 1 or self.tiling.single:
            return self.tiles
        places = self.sms * self.tiling.blocks_per_sm // self.blocks
        return places if self.tiling.fitted else min(self.tiles, places)

    @property
    def has_one_tile(self) -> bool:
        """Whether no block walks on to a second one; of a `fitted` kernel that is told at run time."""
        return self.tiles <= self.clusters and not self.tiling.fitted

    @property
    def grid(self) -> Any:
        """Blocks, as many as there are places; where the tiles are told at run time, these at most."""
        places = tirx.const(self.clusters * self.blocks, "int32")
        if not self.tiling.fitted:
            return places
        return tirx.Min(tirx.const(self.tiles * self.blocks, "int32"), places)

    @property
    def steps(self) -> int:
        return self.own_steps + self.added_steps

    @property
    def own_steps(self) -> int:
        """Of k, a row of the stage each, or several taps of it."""
        return self.view.extent(*self.view.steps) * self._chunks // self.tiling.taps

    @property
    def _bk(self) -> int:
        return self.tiling.row_bytes * 8 // dtype_bits(self.dtype)

    @property
    def _chunks(self) -> int:
        return ceil(self.view.extent(self.view.inner) / self._bk)

    @property
    def part_of_steps(self) -> int:
        """What a block does of them, at most."""
        return ceil(self.steps / self.tiling.split)

    def obstacle(self) -> str:
        """Why k cannot be walked in parts, by several taps at once, or with a B that stays; "" when it can."""
        if self.tiling.taps not in (1, self._taps):
            return f"{self.tiling.taps} taps, the window has {self._taps}"
        if self.tiling.taps > 1 and self.added_steps:
            return "several taps, and a product without"
        if self.tiling.resident and (self.tiling.resident, self._columns, self.view.batch) != (self.steps, 1, ()):
            return f"{self.tiling.resident} steps of B stay, and others are needed"
        is_empty = (self.tiling.split - 1) * self.part_of_steps >= self.steps
        return f"{self.steps} steps of k in {self.tiling.split} parts" if is_empty else ""

    def ragged(self) -> frozenset[int]:
        """Groups that a tile may reach beyond."""
        view, t = self.view, self.tiling
        counts = self._counts
        found = [
            g for g, rows, count in zip(view.rows, t.rows, counts, strict=True) if count * rows > view.groups[g].extent
        ]
        found += [view.rows[0]] if prod(counts) % (t.cluster * t.boxes) else []
        return frozenset(found + ([view.n] if view.extent(view.n) % t.columns else []))

    def where(self, tile: Any, rank: Any, box: Any) -> dict[int, Any]:
        """Each group's first index (batch, rows, n) in a box of the tile of the cluster's block `rank`."""
        view, t, places, columns = self.view, self.tiling, self._places, self._columns
        raster = max(1, t.raster // t.cluster)
        per_batch = places * columns
        within = tile % per_batch if view.batch else tile
        band = within // (raster * columns)
        height = tirx.min(places - band * raster, raster)
        rest = within - band * (raster * columns)
        m = band * raster + rest % height if raster > 1 else within // columns
        n = rest // height if raster > 1 else within % columns
        m = m * t.cluster + rank if t.cluster > 1 else m
        m = m * t.boxes + box if t.boxes > 1 else m
        at = {view.n: n * t.columns}
        for g, count, rows in reversed(list(zip(view.rows, self._counts, t.rows, strict=True))):
            at[g] = (m % count if g != view.rows[0] else m) * rows
            m = m // count
        return bound(at | unravel(view, tile // per_batch, view.batch))

    def stored_at(self, at: dict[int, Any], rank: Any, consumer: Any) -> dict[int, Any]:
        """Where that part of a tile begins which this consumer of the cluster's block `rank` stores."""
        t = self.tiling
        if t.stored_columns == t.columns:
            return at
        return at | {self.view.n: T.Bind(at[self.view.n] + (consumer if t.swapped else rank) * t.stored_columns)}

    def first_step(self, rank: Any) -> Any:
        return rank * self.part_of_steps if self.tiling.split > 1 else 0

    def steps_of(self, rank: Any) -> Any:
        """How many steps this block does."""
        part = self.part_of_steps
        return tirx.min(self.steps - self.first_step(rank), part) if self.steps % part else part

    def at_step(self, step: Any) -> dict[int, Any]:
        """Each group's first index along k; the first tap's, where there are several."""
        chunks = self._chunks
        window = taps_below(self.view) if self.tiling.taps > 1 else -1
        steps = tuple(g for g in self.view.steps if g != window)
        at = unravel(self.view, step // chunks, steps) | {self.view.inner: step % chunks * self._bk}
        return self.at_tap(at, 0)

    def at_tap(self, at: dict[int, Any], tap: Any) -> dict[int, Any]:
        return at | {taps_below(self.view): tap} if self.tiling.taps > 1 else at

    @property
    def _taps(self) -> int:
        return self.view.extent(window) if (window := taps_below(self.view)) >= 0 else 1


def taps_below(view: GemmView) -> int:
    """The group of taps that read one row of pixels after the other, for neighbours in one row after the other; or -1.

    The rows of pixels are the last group of rows but one. What one tap reads is then what the one before it reads, but
    for a row of pixels.
    """
    below = view.rows[-2] if len(view.rows) > 1 else -1
    found = (dim.window for dim in view.a if dim.group == below and (dim.scale, dim.dilation) == (1, 1))
    return next(found, -1)


def bound(at: dict[int, Any]) -> dict[int, Any]:
    """The indices as variables of the kernel, computed once."""
    return {g: T.Bind(index) for g, index in at.items()}


def unravel(view: GemmView, index: Any, groups: tuple[int, ...]) -> dict[int, Any]:
    """The index into each group, the last one fastest."""
    at = {}
    for g in reversed(groups):
        extent = view.groups[g].extent
        at[g] = index % extent if g != groups[0] else index
        index = index // extent
    return at
