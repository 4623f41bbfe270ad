"""Sizes of a network's first convolution, and its weights as the kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

_MAX_BOX = 256  # elements of a copy along each dim


@dataclass(frozen=True, slots=True)
class StemPacking:
    """OHWI weights to `[O, k]`: `lead` zeros, one window row, zeros up to `row`; zeros up to a multiple of 64."""

    original: tuple[int, ...]
    lead: int
    row: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.original[0], ceil(self.original[1] * self.row / 64) * 64

    def __call__(self, array: np.ndarray) -> np.ndarray:
        o, kh, kw, c = self.original
        packed = np.zeros((o, kh, self.row), array.dtype)
        packed[:, :, self.lead : self.lead + kw * c] = array.reshape(o, kh, kw * c)
        return np.pad(packed.reshape(o, kh * self.row), [(0, 0), (0, self.shape[1] - kh * self.row)])


@dataclass(frozen=True, slots=True)
class Stem:
    """Sizes of the convolution: `rows` of output pixels to a block; `row` elements of a window row, zeros included."""

    height: int
    width: int  # of a row of the input, in words of two elements
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    stride: int
    before: tuple[int, int]  # padding above and, in words, to the left
    row: int
    rows: int

    @property
    def is_copied(self) -> bool:
        """Whether the hardware's own copies bring a patch, the padding as zeros: 8 bytes are their element here."""
        return self.width % 4 == 0 and self.pitch // 2 <= _MAX_BOX and self.patch_rows <= _MAX_BOX

    @property
    def shift(self) -> int:
        """Words from the start of a patch's row to its first window: copies begin at a multiple of 16 bytes, before the
        image as well. At any other place they are an illegal instruction."""
        return -self.before[1] % 4

    @property
    def pitch(self) -> int:
        """Words from one row of the patch to the next."""
        return ceil((self.shift * 2 + (self.out_width - 1) * self.stride * self.channels + self.row) / 8) * 4

    @property
    def patch_words(self) -> int:
        """Of shared memory, which copies align to 128 bytes."""
        return ceil(self.patch_rows * self.pitch / 32) * 32

    @property
    def patch_rows(self) -> int:
        """One more than the windows cover: the last k16 may reach beyond the last window row."""
        return (self.rows - 1) * self.stride + self.kernel[0] + 1

    @property
    def k16(self) -> int:
        return ceil(self.kernel[0] * self.row / 16)
