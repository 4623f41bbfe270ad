"""What an attention candidate decides, and what it costs a multiprocessor."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.tiling import ROW_BYTES
from subtune.backends.many_shapes import TileShape

_REGISTERS = {
    (1, 1): (56, 240), (1, 2): (40, 216), (1, 3): (24, 136),
    (2, 1): (24, 240), (3, 1): (32, 160),
}  # fmt: skip
"""Of the copying and the multiplying warpgroups, by (consumers, blocks of a multiprocessor): together no more than what
a block is launched with, or they wait for ever."""
CONSUMERS = frozenset(_REGISTERS)
_ALL_REGISTERS = 65536
_OTHER_REGISTERS = 40  # addresses, descriptors, rows' maxima and sums
_OPERAND_REGISTERS = 26  # of one multiplication beside its sums
_LEFT_REGISTERS = 4  # of its left operand, where that is no descriptor
_FIXED_BYTES = 1024 + 512  # alignment, barriers
ROWS = 64
"""Of a warpgroup: those of one multiplication."""


@dataclass(frozen=True, slots=True)
class Knobs:
    """A tile has 64 rows for each of its `consumers`, and walks the keys `keys` at a time, in `stages` stages.

    `persistent`: as many blocks as the device has room for, each with several tiles. `across`: tiles of the same rows
    are neighbours, those of all heads, so that whoever looks for a tile divides by the number of heads only.
    """

    keys: int
    stages: int
    consumers: int
    persistent: bool = False
    blocks: int = 1
    """Of a multiprocessor."""
    across: bool = False

    @property
    def rows(self) -> int:
        return ROWS * self.consumers

    @property
    def tile_shape(self) -> TileShape:
        return TileShape(step=self.keys)  # tiles of other rows are computed at the same time

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def setmaxnreg(self) -> tuple[int, int]:
        return _REGISTERS[self.consumers, self.blocks]


def chunks(inner: int) -> int:
    """Copies of 128 bytes for a row of so many halves."""
    return ceil(inner / (ROW_BYTES // 2))


def registers_of(knobs: Knobs, columns: int) -> int:
    """Of a multiplying thread: scores, their weights, sums of V's `columns`, and what else it needs."""
    return knobs.keys // 2 + knobs.keys // 4 + ceil(columns / 8) * 4 + _OTHER_REGISTERS


def obstacle(knobs: Knobs, k: int, columns: int, device: CUDAModel) -> str:
    """Why heads of `k` columns of Q and K, and `columns` of V, cannot have such tiles; "" where they can."""
    if knobs.keys % 16 or not 16 <= knobs.keys <= 256:
        return f"{knobs.keys} keys are no multiple of 16 up to 256"
    if max(k, columns) > 256:
        return "heads of more than 256 columns"
    if (knobs.consumers, knobs.blocks) not in CONSUMERS or knobs.stages < 1:
        return f"no {knobs.blocks} blocks of {knobs.consumers} multiplying warpgroups"
    row = ROW_BYTES * (chunks(k) + chunks(columns))
    shared = knobs.rows * chunks(k) * ROW_BYTES + knobs.stages * knobs.keys * row + _FIXED_BYTES
    if shared > device.shared_per_block_bytes or knobs.blocks * (shared + 1024) > device.shared_per_sm_bytes:
        return f"{shared} bytes of shared memory are too many"
    scores, sums, registers = knobs.keys // 2, ceil(columns / 8) * 4, registers_of(knobs, columns)
    at_launch = _ALL_REGISTERS // (knobs.threads * knobs.blocks) // 8 * 8
    most = max(scores, sums + _LEFT_REGISTERS) + _OPERAND_REGISTERS
    if registers > knobs.setmaxnreg[1] or most > at_launch:
        return f"{registers} registers of a thread are too many"
    return ""
