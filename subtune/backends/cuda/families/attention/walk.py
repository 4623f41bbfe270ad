"""The tiles of an attention kernel: which rows of which head are where, and how many keys they see.

Tiles of one head are neighbours, so that its keys and values stay in L2 (or those of all heads, where all that is read
does); of a causal one, those that see most come
first. Blocks that take several of these are dealt them beforehand, each the next one when it would be through with the
ones it has (list scheduling; Graham, "Bounds on multiprocessing timing anomalies", 1969).
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.script import tirx as T

from subtune.backends.cuda.families.attention.tiling import Knobs
from subtune.patterns.chain import ChainExpressions

SECTION_BYTES = 24 << 20
"""Of keys and values that are read at the same time: half of Hopper's L2."""
_MOST_DEALT = 4096
"""Tiles that are dealt: of more, those that come last are a small part of each block's."""
_ENDS = 1.0
"""Blocks of keys: what begins and ends a tile takes about as long as one."""
_DEALT = """
#ifndef SUBTUNE_{name}
#define SUBTUNE_{name}
namespace subtune {{
__device__ const unsigned short {name}_tiles[] = {{{tiles}}};
__device__ __forceinline__ int {name}(int turn) {{ return {name}_tiles[turn]; }}
}}  // namespace subtune
#endif
"""


@dataclass(frozen=True, slots=True)
class Walk:
    """Attention of `form` in tiles, on a device of `sms` multiprocessors; `offset` is that of a mask by position."""

    form: ChainExpressions
    knobs: Knobs
    sms: int
    offset: int | None
    buffers: Mapping[Any, Any]

    @property
    def m(self) -> Any:
        return self.form.m

    @property
    def n(self) -> Any:
        return self.form.n

    @property
    def score(self) -> Any:
        return self.form.score

    @property
    def m_extent(self) -> int:
        return self.form.extents[self.form.m]

    @property
    def n_extent(self) -> int:
        return self.form.extents[self.form.n]

    @property
    def _heads(self) -> int:
        """All that the outer axes count."""
        return prod(self.form.extents[axis] for axis in self.form.outer)

    @property
    def _per_head(self) -> int:
        return ceil(self.m_extent / self.knobs.rows)

    @property
    def tiles(self) -> int:
        return self._heads * self._per_head

    @property
    def blocks(self) -> int:
        return min(self.tiles, self.sms * self.knobs.blocks) if self.knobs.persistent else self.tiles

    @property
    def is_dealt(self) -> bool:
        return is_dealt(self.knobs, self.offset, self.tiles, self.sms)

    def tile(self, turn: Any) -> Any:
        """The tile of turn `turn`: block b has turns b, b + blocks and so on, until it gets tile number `tiles`."""
        if not self.is_dealt:
            return turn
        tiles = ",".join(map(str, self.dealt()))
        name = f"dealt_{hashlib.sha256(tiles.encode()).hexdigest()[:12]}"
        source = _DEALT.format(name=name, tiles=tiles)
        return cuda_func_call(f"subtune::{name}", turn, source_code=source, return_type="int32")

    def dealt(self) -> list[int]:
        """The tile of every turn, `tiles` where a block has no more."""
        costs = (ceil(self._seen(tile) / self.knobs.keys) + _ENDS for tile in range(self.tiles))
        return _dealt(tuple(costs), self.blocks)

    def _seen(self, tile: int) -> int:
        """Keys that some row of a tile sees."""
        last = (self._per_head - tile // self._section % self._per_head) * self.knobs.rows - 1
        return min(last + 1 + (self.offset or 0), self.n_extent)

    @property
    def _section(self) -> int:
        """Heads whose tiles of the same rows are neighbours."""
        if self.knobs.across:
            return self._heads
        if self.offset is None:
            return 1
        per_head = self.n_extent * (self.form.extents[self.form.k] + self.form.extents[self.form.j]) * 2
        most = max(1, min(self._heads, SECTION_BYTES // per_head))
        return next(size for size in range(most, 0, -1) if self._heads % size == 0)

    def _head(self, tile: Any) -> Any:
        section = self._section
        if section == self._heads:
            return tile % section
        return tile // (section * self._per_head) * section + tile % section

    def outer(self, tile: Any) -> dict[Any, Any]:
        """The outer axes of a tile."""
        at, index = {}, self._head(tile)
        for axis in reversed(self.form.outer):
            extent = self.form.extents[axis]
            at[axis] = T.Bind(index % extent if axis is not self.form.outer[0] else index)
            index = index // extent
        return at

    def first_row(self, tile: Any) -> Any:
        place = tile // self._section
        if self._section < self._heads:
            place = place % self._per_head
        if self.offset is not None:
            place = self._per_head - 1 - place
        return place * self.knobs.rows

    def steps(self, first: Any) -> Any:
        """Blocks of keys that some row of the tile sees."""
        keys, every = self.knobs.keys, ceil(self.n_extent / self.knobs.keys)
        if self.offset is None:
            return every
        return tirx.min((first + self.knobs.rows + self.offset + keys - 1) // keys, every)

    def seen_by_all(self, first: Any) -> Any:
        """Keys from the first on that every row of a warpgroup sees."""
        if self.offset is None:
            return self.n_extent
        return tirx.min(first + self.offset + 1, self.n_extent)

    def is_own(self, first: Any, block: Any) -> Any:
        """Whether, of a head's tiles, the one from row `first` on is to store what all of them read of a block of keys:
        the first one that sees it, and each in its turn where all do."""
        if self.offset is None:
            return block % self._per_head == first // self.knobs.rows
        return tirx.any(first == 0, block >= self.steps(first - self.knobs.rows))


@lru_cache(maxsize=8)  # every role of a kernel asks
def _dealt(costs: tuple[float, ...], blocks: int) -> list[int]:
    free = [(0.0, block) for block in range(blocks)]
    taken: list[list[int]] = [[] for _ in free]
    for tile, cost in enumerate(costs):
        ends, block = free[0]
        taken[block].append(tile)
        heapq.heapreplace(free, (ends + cost, block))
    rounds = max(map(len, taken)) + 1
    return [own[i] if i < len(own) else len(costs) for i in range(rounds) for own in taken]


def is_dealt(knobs: Knobs, offset: int | None, tiles: int, sms: int) -> bool:
    """Whether blocks have several tiles each, of which some see more keys than others: see `Walk.dealt`."""
    return knobs.persistent and offset is not None and sms * knobs.blocks < tiles <= _MOST_DEALT
