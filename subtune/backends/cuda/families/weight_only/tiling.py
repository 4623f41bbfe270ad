"""A few rows times a matrix of 4 or 8-bit weights, the tiles of its kernel."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.weight_only.form import Form
from subtune.backends.cuda.families.weight_only.packing import CHUNK, ROWS
from subtune.core.numerics import Numerics
from subtune.core.workload import dtype_bits

_RESERVED_SHARED = 1024
"""Bytes of a block that CUDA takes (CUDA programming guide, compute capability 8.0 and newer)."""
_MAX_WORDS = 64  # of weights on their way: more do not fit the registers
_CLUSTERS = 90  # capability from which blocks can be clusters


@dataclass(frozen=True, slots=True)
class WeightOnlyTile:
    """A warp sums `tile` times 16 rows of weights with `unroll` chunks of 64 k on their way.

    Attributes:
        threads: of a block; its warps lie beside one another, `split` of them share k.
        cluster: blocks that share k as well.
        staged: 1: the block's part of x lies in shared memory; 0: it is read where it is needed.
    """

    threads: int
    split: int
    tile: int
    unroll: int
    cluster: int
    staged: int

    @property
    def across(self) -> int:
        """Warps of a block beside one another."""
        return self.threads // 32 // self.split

    @property
    def rows(self) -> int:
        return self.across * self.tile * ROWS

    def steps(self, form: Form) -> int:
        """Of a warp."""
        return ceil(ceil(ceil(form.length / CHUNK) / (self.cluster * self.split)) / self.unroll)

    def own(self, form: Form) -> int:
        """Chunks of a warp."""
        return self.steps(form) * self.unroll

    def blocks(self, form: Form) -> int:
        return ceil(form.rows / self.rows) * self.cluster

    def groups(self, form: Form) -> int:
        """Groups of a row in a step of a warp."""
        return ceil(self.unroll * CHUNK / form.group) if form.group else 1

    def all_groups(self, form: Form) -> int:
        """Groups of a row, with those that pad: whole steps, as they are loaded together."""
        each, groups = form.group or form.length, self.groups(form)
        return ceil(ceil(form.length / CHUNK) * CHUNK // each / groups) * groups

    def scale_words(self, form: Form) -> int:
        """Of a lane's two rows of 16, in a step."""
        return self.groups(form) * 2 * dtype_bits(form.scale_dtype) // 32

    def zero_words(self, form: Form) -> int:
        return ceil(self.groups(form) / 2)

    def sums(self, form: Form) -> int:
        """Results that a block finishes."""
        return form.vectors * self.rows // self.cluster

    def part_floats(self, form: Form) -> int:
        return self.split * form.vectors * (self.rows + 4)

    def shared_bytes(self, form: Form) -> int:
        staged = self.own(form) * self.split * CHUNK * form.vectors * 2
        return 4 * self.part_floats(form) + (staged if self.staged else 0)

    def registers(self, form: Form) -> int:
        """Of a thread: what the compiler takes, within 24 of that."""
        words = self.tile * self.unroll * form.bits
        sums = (8 if self.tile * ceil(form.vectors / 8) > 1 else 12) * self.tile * ceil(form.vectors / 8)
        factors = self.tile * (self.scale_words(form) + (self.zero_words(form) if form.zeros >= 0 else 0))
        of_x = 0 if self.staged else 8 * ceil(form.vectors / 8)
        return 8 * ceil((36 + words + sums + factors + of_x) / 8)

    def obstacle(self, form: Form, device: CUDAModel, numerics: Numerics) -> str:
        """Why this tile does not work; "" where it does."""
        if device.capability < 80 or numerics.tensor_core == "off":
            return f"{device.arch} has no tensor cores for this, or they are off"
        if self.cluster > 1 and device.capability < _CLUSTERS:
            return f"{device.arch} has no clusters"
        if self.threads % (32 * self.split) or self.threads > device.max_threads_per_block:
            return f"{self.threads} threads, {self.split} warps share k"
        if self.tile * self.unroll * form.bits > _MAX_WORDS:
            return f"{self.unroll} times {self.tile} chunks of 16 rows on their way"
        if (self.cluster * self.split - 1) * self.own(form) * CHUNK >= form.length:
            return f"{self.cluster * self.split} warps for {form.length} elements: some would have nothing to do"
        if self.shared_bytes(form) + _RESERVED_SHARED > device.shared_per_block_bytes:
            return f"{self.shared_bytes(form)} bytes of shared memory"
        return ""
