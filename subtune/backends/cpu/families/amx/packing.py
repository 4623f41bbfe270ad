"""A constant right operand in the tiles that AMX loads, made when a model is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

from subtune.backends.cpu.math.amx_tiles import COLUMNS, WORDS


@dataclass(frozen=True, slots=True)
class TilePacking:
    """A constant B in tiles: its dims are turned to `order` (batch..., n, k...), the k ones become one.

    `panel` columns, a multiple of 16, lie together for all of k; the last k dim is padded to `run` elements, of which
    `count` are a word. A bfloat16 or a byte is one part; `parts` of a float32 lie one after the other.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]
    batch: int
    panel: int
    run: int
    parts: int = 1
    count: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        extents = [self.dims[dim] for dim in self.order]
        n, k = extents[self.batch], prod(extents[self.batch + 1 : -1]) * self.run
        tiles = (-(-k // (WORDS * self.count)), self.panel // COLUMNS, WORDS, COLUMNS)
        return (*extents[: self.batch], -(-n // self.panel), *([self.parts] if self.parts > 1 else []), *tiles)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        if self.parts == 1:
            return self._tiles(array.view(f"uint{32 // self.count}"))
        return np.stack([self._tiles(part) for part in _parts_of(array, self.parts)], self.batch + 1)

    def _tiles(self, bits: np.ndarray) -> np.ndarray:
        steps, tiles, words, columns = self.shape[-4:]
        batch, panels = self.shape[: self.batch], self.shape[self.batch]
        turned = bits.transpose(self.order)
        turned = np.pad(turned, [*[(0, 0)] * (turned.ndim - 1), (0, self.run - turned.shape[-1])])
        rows = turned.reshape(*batch, turned.shape[self.batch], -1)
        whole = np.zeros((*batch, panels * self.panel, steps * words * self.count), bits.dtype)
        whole[..., : rows.shape[-2], : rows.shape[-1]] = rows
        split = whole.view(np.int32).reshape(*batch, panels, tiles, columns, steps, words)
        first = len(batch)
        order = [*range(first), *(first + part for part in (0, 3, 1, 4, 2))]
        return np.ascontiguousarray(split.transpose(order))


def _parts_of(array: np.ndarray, count: int) -> list[np.ndarray]:
    """The bits of `count` bfloat16 whose sum is the array of float32: each rounds what those before it leave."""
    found, rest = [], array
    for _ in range(count):
        part = rest.astype(ml_dtypes.bfloat16)
        found.append(part.view(np.uint16))
        rest = rest - part.astype(np.float32)
    return found
