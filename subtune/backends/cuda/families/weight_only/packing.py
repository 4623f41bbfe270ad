"""Weights of 4 or 8 bits in the order in which the lanes of a warp take them as fragments of `mma.m16n8k16`.

    [N, K]  ->  [N / 16][K / 64][4 bits: 1, 8 bits: 2][32 lanes][16 bytes]

Lane 4 g + t has of every run of 32 k those from 8 t on, in two fragments of four k, of rows g and g + 8. Four bits: a
fragment is a word, its bytes are of k 0 2 1 3, with row g in the lower half of each. Eight bits: it is two words, of k
0 1 and of k 2 3, in each row g and then row g + 8. Runs of k and rows that are not there are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ROWS, CHUNK = 16, 64


@dataclass(frozen=True, slots=True)
class FragmentOrder:
    """Of weights [rows, length] with `bits` each, stored in bytes.

    Attributes:
        tiles: of 16 rows, with those that pad.
        is_signed: bytes are two's complement; they become unsigned ones, 128 more.
    """

    rows: int
    length: int
    bits: int
    tiles: int
    is_signed: bool = False

    @property
    def chunks(self) -> int:
        return -(-self.length // CHUNK)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.tiles, self.chunks, self.bits // 4, 32, 16)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """`array`: [rows, length * bits / 8] of uint8 or int8."""
        raw = np.ascontiguousarray(array).reshape(self.rows, -1).view(np.uint8)
        if self.bits == 4:
            raw = np.stack([raw & 15, raw >> 4], -1).reshape(self.rows, -1)
        elif self.is_signed:
            raw = raw ^ np.uint8(0x80)
        pad = (self.tiles * ROWS - self.rows, self.chunks * CHUNK - self.length)
        whole = np.pad(raw, [(0, after) for after in pad]) if any(pad) else raw
        # tile, row of two, g; chunk, h, t, j, k of two, k of two
        parts = whole.reshape(self.tiles, 2, 8, self.chunks, 2, 4, 2, 2, 2)
        if self.bits == 4:
            both = parts[:, 0] | parts[:, 1] << 4  # tile, g, chunk, h, t, j, e1, e0
            packed: np.ndarray = both.transpose(0, 2, 1, 4, 3, 5, 7, 6)  # tile, chunk, g, t, h, j, e0, e1
        else:
            packed = parts.transpose(0, 3, 4, 2, 5, 6, 7, 1, 8)  # tile, chunk, h, g, t, j, e1, row, e0
        return np.ascontiguousarray(packed).view(array.dtype).reshape(self.shape)
