"""Tiles of matrix products on CUDA cores, and the reasons why one does not fit a device. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.model.block_tile import block_obstacle
from subtune.core.workload import dtype_bits
from subtune.patterns.gemm import Gemm

WARP_ROWS, WARP_COLUMNS = 4, 8  # lanes of a warp over its tile: a float4 of A for 4, one of B for 8 distinct addresses
TENSOR_LANES = 8, 4  # as `mma.sync` has them
VECTOR = 4
_SPLIT_COLUMNS = 40  # registers: elements of B in two parts, and products on their way to the sums
_FMA_ADDRESSES, _ADDRESSES = 18, 16  # registers: addresses and counters; the compiler's figures within 5 %


@dataclass(frozen=True, slots=True)
class SimtTile:
    """A block computes bm x bn sums, a thread tm x tn adjacent ones; bk deep tiles pass through shared memory.

    `copy`: "async" (cp.async, `stages` tiles in flight) or "registers" (loaded to registers while the tile before is
    computed with, then stored).
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int
    copy: str
    raster: int = 1

    @property
    def warps(self) -> tuple[int, int]:
        return self.bm // self.tm // WARP_ROWS, self.bn // self.tn // WARP_COLUMNS

    @property
    def threads(self) -> int:
        return self.bm // self.tm * (self.bn // self.tn)

    def shared_bytes(self, gemm: Gemm) -> int:
        itemsize = max(dtype_bits(gemm.a.dtype), dtype_bits(gemm.b.dtype)) // 8
        padding = 2 * (self.tm // VECTOR + self.tn // VECTOR) * 16 + 16
        return self.stages * (self.bm + self.bn + padding) * self.bk * itemsize

    def registers(self, gemm: Gemm) -> int:
        staged = (self.bm + self.bn) * self.bk // self.threads if self.copy == "registers" else 0
        return self.tm * self.tn + 3 * (self.tm + self.tn) // 2 + staged + _ADDRESSES

    def blocks(self, gemm: Gemm) -> int:
        return ceil(gemm.m / self.bm) * ceil(gemm.n / self.bn) * gemm.batch

    def steps(self, gemm: Gemm) -> int:
        return ceil(gemm.k / self.bk)

    def vector(self, gemm: Gemm, operand: str) -> int:
        """Elements per global load. Along k they are stored one by one, into the rows of a turned tile."""
        rows, side = (self.bm, gemm.a) if operand == "a" else (self.bn, gemm.b)
        # asynchronous copies one by one: they cannot turn a tile, and TVM refuses wider ones where fragments are read
        # by vectors too (0.27.0.post1)
        vector = min(side.vector, VECTOR) if self.copy == "registers" else 1
        while vector > 1 and (rows * self.bk) % (self.threads * vector):
            vector //= 2
        return vector


def simt_tile_obstacle(tile: SimtTile, gemm: Gemm, device: CUDAModel) -> str:
    """Why a block of this tile does not work on `device`; "" where it does."""
    if tile.bm % (tile.tm * WARP_ROWS) or tile.bn % (tile.tn * WARP_COLUMNS):
        return "the tile is no multiple of a warp's"
    if tile.tm % VECTOR or tile.tn % VECTOR:
        return f"a thread's tile is no multiple of {VECTOR}"
    if reason := block_obstacle(tile, gemm, device):
        return reason
    if tile.copy == "registers" and tile.stages != 2:
        return "copies through registers alternate between two buffers"
    if tile.copy == "async" and device.capability < 80:
        return f"{device.arch} has no asynchronous copies"
    if (tile.bm * tile.bk) % tile.threads or (tile.bn * tile.bk) % tile.threads:
        return "the threads do not share the copies evenly"
    return ""


@dataclass(frozen=True, slots=True)
class FmaTile:
    """As `SimtTile`, float32 alone: A and B as they lie in memory, A along k, and `stages` tiles in flight.

    A thread computes rows 4 apart. `blocks` per multiprocessor at least: the compiler's limit of registers. `slices`
    groups of warps each compute the whole tile from a part of every bk. `split` blocks share a tile, each has a part of
    k; another kernel adds up what they come to. `tensor`: tensor cores multiply, in three products of tf32.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int
    blocks: int
    slices: int = 1
    split: int = 1
    tensor: bool = False

    @property
    def threads(self) -> int:
        return self.bm // self.tm * (self.bn // self.tn) * self.slices

    @property
    def lanes(self) -> tuple[int, int]:
        """Of a warp, over the rows and the columns of its tile."""
        return TENSOR_LANES if self.tensor else (WARP_ROWS, WARP_COLUMNS)

    @property
    def together(self) -> int:
        """Sums of a thread that lie side by side."""
        return min(self.tn, 2 * VECTOR) if self.tensor else VECTOR

    @property
    def vector(self) -> int:
        """Sums of a thread that are stored at once."""
        return min(self.together, VECTOR)

    def shared_bytes(self, b_along_k: bool = False) -> int:
        """Of the tiles in flight; afterwards, of the sums that slices exchange."""
        pitch, beside = self.bk + 4, 0
        if self.tensor:
            pitch, beside = self.bk if self.bk % 16 else self.bk + 8, 4
        b = self.bn * pitch if b_along_k else self.bk * (self.bn + beside)
        return 4 * max(self.stages * (self.bm * pitch + b), (self.slices - 1) * self.bm * self.bn)

    @property
    def registers(self) -> int:
        """What a thread needs: sums, fragments, addresses. With fewer than 16 more the compiler moves some about."""
        copies = (self.bm + self.bn) * self.bk // VECTOR // self.threads
        of_b = _SPLIT_COLUMNS if self.tensor else self.tn
        return self.tm * self.tn + 4 * self.tm + of_b + _FMA_ADDRESSES + 2 * copies

    def rows_copied(self, vector: int) -> int:
        """Rows of A of which one thread copies `vector` elements each."""
        return self.bm * self.bk // vector // self.threads

    def channels_of_part(self, k: int) -> int:
        """Of a sum over `k` in `split` parts: all equal, or whole steps and a shorter last one."""
        is_equal = k % (self.split * VECTOR) == 0 or self.split == 1
        return k // self.split if is_equal else -(-k // (self.split * self.bk)) * self.bk

    def divides(self, k: int) -> bool:
        """Whether every part of a sum over `k` has something to add."""
        return (self.split - 1) * self.channels_of_part(k) < k

    def obstacle(self, vector: int, device: CUDAModel, b_along_k: bool = False, k: int = 1) -> str:
        """Why a block of this tile does not work on `device`, and `k` not in its parts; "" where they do."""
        high, wide = self.lanes
        if self.bm % (self.tm * high) or self.bn % (self.tn * wide) or self.tn % self.vector:
            return "the tile is no multiple of a warp's"
        if self.tensor and (self.tm % 2 or (b_along_k and self.tn % (2 * VECTOR))):
            return "a warp's tile is no multiple of a tensor core's"
        depth = 2 * VECTOR if self.tensor else VECTOR
        if self.tm * self.tn % (self.slices * VECTOR) or self.tm % self.slices or self.bk % (depth * self.slices):
            return f"{self.slices} slices do not share {self.tm} rows and a depth of {self.bk}"
        if device.capability < 80:
            return f"{device.arch} has no asynchronous copies"
        if not self.divides(k):
            return f"a sum over {k} in {self.split} parts"
        if self.stages < 2 or self.threads > device.max_threads_per_block:
            return f"{self.stages} stages, {self.threads} threads"
        if (shared := self.shared_bytes(b_along_k)) > device.shared_per_block_bytes:
            return f"{shared} bytes of shared memory, a block has {device.shared_per_block_bytes}"
        of_b = vector if b_along_k else VECTOR
        if (self.bm * self.bk) % (self.threads * vector) or (self.bn * self.bk) % (self.threads * of_b):
            return "the threads do not share the copies evenly"
        if self.threads % (self.bk // vector) or self.threads % (self.bn // VECTOR):
            return "the threads do not share a row evenly"
        return ""
