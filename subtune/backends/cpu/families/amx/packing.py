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

    There are so many `panels` of 16 columns, which lie together for all of k; the last k dim is padded to `run`
    elements, of which `count` are a word. A bfloat16 or a byte is one part; `parts` of a float32 are one after the
    other.
    """

    dims: tuple[int, ...]
    order: tuple[int, ...]
    batch: int
    panels: int
    run: int
    parts: int = 1
    count: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        extents = [self.dims[dim] for dim in self.order]
        steps = -(-prod(extents[self.batch + 1 : -1]) * self.run // (WORDS * self.count))
        parts = [self.parts] if self.parts > 1 else []
        return (*extents[: self.batch], self.panels, *parts, steps, WORDS, COLUMNS)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        if self.parts == 1:
            return self._tiles(array.view(f"uint{32 // self.count}"))
        return np.stack([self._tiles(part) for part in _parts_of(array, self.parts)], self.batch + 1)

    def _tiles(self, bits: np.ndarray) -> np.ndarray:
        steps, words, columns = self.shape[-3:]
        batch = self.shape[: self.batch]
        turned = bits.transpose(self.order)
        turned = np.pad(turned, [*[(0, 0)] * (turned.ndim - 1), (0, self.run - turned.shape[-1])])
        rows = turned.reshape(*batch, turned.shape[self.batch], -1)
        whole = np.zeros((*batch, self.panels * columns, steps * words * self.count), bits.dtype)
        whole[..., : rows.shape[-2], : rows.shape[-1]] = rows
        split = whole.view(np.int32).reshape(*batch, self.panels, columns, steps, words)
        first = len(batch)
        order = [*range(first), *(first + part for part in (0, 2, 3, 1))]
        return np.ascontiguousarray(split.transpose(order))


def _parts_of(array: np.ndarray, count: int) -> list[np.ndarray]:
    """The bits of `count` bfloat16 whose sum is the array of float32: each rounds what those before it leave."""
    found, rest = [], array
    for _ in range(count):
        part = rest.astype(ml_dtypes.bfloat16)
        found.append(part.view(np.uint16))
        rest = rest - part.astype(np.float32)
    return found
