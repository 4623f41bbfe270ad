"""A few vectors times a matrix of 4-bit weights, the tiles of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.backends.cuda.device import CUDAModel
from subtune.core.numerics import Numerics
from subtune.patterns.gemv_packed import RUN, PackedGemv

MMA_ROWS = 16
CHUNK = 4 * RUN
"""Weights of a row that a warp loads at a time: four lanes share a row."""
_MAX_SHARED = 48 * 1024
_MAX_ON_THE_WAY = 8  # more do not fit the registers


@dataclass(frozen=True, slots=True)
class PackedTile:
    """A warp sums `tile` times 16 rows with `unroll` chunks of each on their way; `split` warps of a block share k."""

    threads: int
    split: int
    tile: int
    unroll: int

    @property
    def across(self) -> int:
        """Warps of a block beside one another."""
        return self.threads // 32 // self.split

    @property
    def rows(self) -> int:
        return self.across * self.tile * MMA_ROWS

    def shared_bytes(self, form: PackedGemv) -> int:
        return 4 * self.split * form.vectors * self.rows

    def registers(self, form: PackedGemv) -> int:
        """Of a thread: what the compiler takes, within 12 of that, and without scales."""
        return 8 * ceil((32 + 4 * self.tile + (12 if form.group else 10) * self.tile * self.unroll) / 8)

    def obstacle(self, form: PackedGemv, device: CUDAModel, numerics: Numerics) -> str:
        """Why this tile does not work; "" where it does."""
        if device.capability < 80 or numerics.tensor_core == "off":
            return f"{device.arch} has no tensor cores for this, or they are off"
        if self.threads % (32 * self.split) or self.threads > device.max_threads_per_block:
            return f"{self.threads} threads, {self.split} warps share k"
        if self.tile * self.unroll > _MAX_ON_THE_WAY:
            return f"{self.unroll} times {self.tile} runs of 16 rows on their way"
        if self.shared_bytes(form) > _MAX_SHARED:
            return f"{self.shared_bytes(form)} bytes of shared memory"
        return ""
