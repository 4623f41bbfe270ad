"""Weights of 4 or 8 bits as words of 32 bits, a panel of columns side by side; and what becomes a float of a word.

    words[panel, block, w, column]      the weights of 8 or 4 neighbours along k, the first in the lowest bits

Of float32 2^23 + q the bits are those of 2^23 and those of q, for q < 2^23. So a field of a word at place p, left where
it is and united with the bits of 2^23, is 2^23 + q 2^p; what remains of that minus 2^23 is q 2^p. These are two
instructions, one that selects bits and unites them (AVX-512), and a subtraction, which takes the zero point along. x is
multiplied by 2^-p before. Fields beyond bit 22 come into reach by one shift for all of them. Where a vector of nibbles
can be looked up, those that lie lowest, before the shift and after it, become floats by one instruction. To shift
others down and look them up takes as many as to select and subtract, and a Zen 4 begins fewer of those at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from subtune.backends.cpu.math.nibble_ops import nibble_float
from subtune.core.kernel import Packing

WORD, NIBBLE = 32, 4
_HELD, _HELD_BITS = float(1 << 23), 0x4B000000
_IN_PLACE = {4: 3, 8: 2}
"""Fields of a word, of so many bits each, that are left in place: within the 23 bits."""
_SHIFT = {4: 12, 8: 16}
"""By which the others do."""
_SIGN, _MIDDLE = 128, {4: 8, 8: 128}


@dataclass(frozen=True, slots=True)
class WordPacking:
    """Rows of bits [columns, bytes] -> uint32 [panels, blocks, words, panel]; what is missing becomes zeros.

    Attributes:
        columns: what they are padded to, whole panels.
        panel: columns side by side.
        words: of a block of a row.
        in_halves: nibbles 0 to 3 are the lower ones of a word's bytes, 4 to 7 the upper ones.
    """

    columns: int
    panel: int
    blocks: int
    words: int
    in_halves: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.columns // self.panel, self.blocks, self.words, self.panel)

    def __call__(self, array: np.ndarray) -> np.ndarray:
        bits = array.view(np.uint8) ^ np.uint8(_SIGN if array.dtype == np.int8 else 0)
        short = self.blocks * self.words * WORD // 8 - bits.shape[1]
        if short or bits.shape[0] != self.columns:
            bits = np.pad(bits, [(0, self.columns - bits.shape[0]), (0, short)])
        if self.in_halves:
            bits = _halves(bits)
        words = np.ascontiguousarray(bits).view("<u4")
        return np.ascontiguousarray(
            words.reshape(-1, self.panel, self.blocks, self.words).transpose(0, 2, 3, 1), np.uint32
        )


def _halves(bits: np.ndarray) -> np.ndarray:
    """Nibbles 0 1, 2 3, 4 5, 6 7 of four bytes as 0 4, 1 5, 2 6, 3 7."""
    fields = np.stack([bits & 15, bits >> 4], -1).reshape(bits.shape[0], -1, 2, WORD // NIBBLE // 2)
    return (fields[:, :, 0] | fields[:, :, 1] << 4).reshape(bits.shape)


def of_blocks(columns: int, panel: int, blocks: int) -> Packing:
    """[columns, blocks] -> [panels, blocks, panel], for scales and zero points."""
    return Packing(((columns // panel, panel), (blocks,)), (0, 2, 1))


def middle(bits: int) -> int:
    """What is subtracted of every weight that has a zero point of its own."""
    return _MIDDLE[bits]


def place(field: Any, bits: int) -> tuple[Any, Any]:
    """By how many bits a word is shifted for a field, and where the field lies then; both of the field's type."""
    beyond = field >= tirx.const(_IN_PLACE[bits], field.ty)
    shift = tirx.Select(beyond, tirx.const(_SHIFT[bits], field.ty), tirx.const(0, field.ty))
    return shift, field * tirx.const(bits, field.ty) - shift


def inverse(field: Any, bits: int) -> Any:
    """2^-p for the place of a field, by its exponent."""
    _, at = place(field, bits)
    return tirx.reinterpret("float32", (tirx.const(127, "int32") - at.astype("int32")) << tirx.const(23, "int32"))


def power(field: Any, bits: int) -> Any:
    """2^p for the place of a field."""
    _, at = place(field, bits)
    return tirx.reinterpret("float32", (tirx.const(127, "int32") + at.astype("int32")) << tirx.const(23, "int32"))


def float_of(word: Any, field: Any, bits: int, point: int, is_looked_up: bool = False) -> Any:
    """(q - point) * 2^p of a field of a word; exact.

    Args:
        is_looked_up: nibbles with p = 0 are, in vectors of `nibble_ops.LANES`; `field` becomes a constant.
    """
    shift, at = place(field, bits)
    mask = tirx.const((1 << bits) - 1, "uint32") << at.astype("uint32")
    shifted = word >> shift.astype("uint32")
    selected = (shifted & mask) | tirx.const(_HELD_BITS, "uint32")
    taken = tirx.const(_HELD, "float32") + tirx.const(float(point), "float32") * power(field, bits)
    computed = tirx.reinterpret("float32", selected) - taken
    if not is_looked_up:
        return computed
    assert bits == NIBBLE, f"a table of fields of {bits} bits"
    return tirx.Select(at == tirx.const(0, at.ty), nibble_float(shifted, point), computed)
