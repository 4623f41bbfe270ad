"""Sizes of a network's first convolution, and its weights as the kernel reads them.

    channels last    a pixel's channels follow one another:  one plane of  [height, width * channels]
    planar           every channel is an image:              `planes`  of  [height, width]

k walks a plane's window rows, and then the next plane's: `row` elements of each, zeros included.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from subtune.backends.cuda.families.wgmma.in_place import neighbouring

_MAX_BOX = 256  # elements of a copy along each dim
_COLUMNS = 16  # of a multiplication's smallest tile
_AT_ONCE = 4  # words of k that four threads read together, one each
_ROW_WORDS = 32  # of a row of packed weights that is copied at once


def row_of(elements: int, is_planar: bool, per_word: int) -> int:
    """Elements of k for a window row of `elements`: two of four are read at once, where no channels lie between."""
    at_once = _AT_ONCE * per_word
    return 4 if is_planar and elements <= 4 else ceil(elements / at_once) * at_once


def taps_of(kernel_rows: int, row: int, per_word: int) -> int:
    """Window rows of a plane in k, so that a plane begins where four threads do."""
    at_once = max(1, _AT_ONCE * per_word // row)
    return ceil(kernel_rows / at_once) * at_once


@dataclass(frozen=True, slots=True)
class StemPacking:
    """OHWI weights to `[O, k]`: of each window row `lead` zeros, its weights, zeros to `row`.

    O is filled up to a multiple of 16, k to one of 128 bytes. A word of k has `per_word` elements. With `in_place` O is
    in the order of a thread's sums (`wgmma.in_place`).
    """

    original: tuple[int, ...]
    lead: int
    row: int
    is_planar: bool = False
    per_word: int = 2
    in_place: bool = False

    @property
    def _rows(self) -> tuple[int, int]:
        """Planes, and window rows of each."""
        return self.original[3] if self.is_planar else 1, taps_of(self.original[1], self.row, self.per_word)

    @property
    def shape(self) -> tuple[int, int]:
        planes, taps = self._rows
        whole = _ROW_WORDS * self.per_word
        return ceil(self.original[0] / _COLUMNS) * _COLUMNS, ceil(planes * taps * self.row / whole) * whole

    def __call__(self, array: np.ndarray) -> np.ndarray:
        o, kh, kw, c = self.original
        planes, taps = self._rows
        rows = array.transpose(0, 3, 1, 2) if self.is_planar else array.reshape(o, 1, kh, kw * c)
        packed = np.zeros((o, planes, taps, self.row), array.dtype)
        packed[:, :, :kh, self.lead : self.lead + rows.shape[-1]] = rows
        more = self.shape[0] - o, self.shape[1] - planes * taps * self.row
        made = np.pad(packed.reshape(o, -1), [(0, more[0]), (0, more[1])])
        return neighbouring(made, 0) if self.in_place else made


@dataclass(frozen=True, slots=True)
class Stem:
    """Sizes of the convolution: `rows` of output pixels to a block; `row` elements of a window row, zeros included.

    A pixel of a plane has `channels`, a word `per_word` elements.
    """

    height: int
    width: int  # of a row of the input, in words
    channels: int
    out_height: int
    out_width: int
    kernel: tuple[int, int]
    stride: int
    before: tuple[int, int]  # padding above and, in words, to the left
    row: int
    rows: int
    planes: int = 1
    per_word: int = 2

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
        elements = self.shift * self.per_word + (self.out_width - 1) * self.stride * self.channels + self.row
        return ceil(elements / (4 * self.per_word)) * 4

    @property
    def patch_bytes(self) -> int:
        """What a copy brings."""
        return self.planes * self.patch_rows * self.pitch * 4

    @property
    def patch_words(self) -> int:
        """Of shared memory, which copies align to 128 bytes."""
        return ceil(self.patch_bytes / 128) * 32

    @property
    def patch_rows(self) -> int:
        """Of a plane."""
        return (self.rows - 1) * self.stride + self._taps

    @property
    def _taps(self) -> int:
        return taps_of(self.kernel[0], self.row, self.per_word)

    @property
    def at_once(self) -> int:
        """Elements of k that four threads read together, a word each."""
        return _AT_ONCE * self.per_word

    @property
    def steps(self) -> int:
        """Multiplications of 32 bytes of k."""
        return ceil(self.planes * self._taps * self.row / (2 * self.at_once))

    def word_of(self, k: int) -> int | None:
        """Words from the first of a window to element `k`, the first of those that four threads read; None: no such."""
        plane, tap = divmod(k // self.row, self._taps)
        within = k % self.row // self.per_word
        return (plane * self.patch_rows + tap) * self.pitch + within if plane < self.planes else None

    def of_thread(self, four: Any) -> Any:
        """The same from there to the word of a thread, the one numbered `four` of four."""
        words = self.row // self.per_word
        return four // words * self.pitch + four % words
