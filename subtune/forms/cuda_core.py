"""Tiles of matrix products on CUDA cores, and the reasons why one does not fit a device. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.candidate import Candidate
from subtune.devices.cuda import CUDAModel
from subtune.forms.gemm import Gemm, block_obstacle
from subtune.workload import dtype_bits

WARP_ROWS, WARP_COLUMNS = 4, 8  # lanes of a warp over its tile: a float4 of A for 4, one of B for 8 distinct addresses
VECTOR = 4
_OVERHEAD, _ADDRESSES = 20, 16  # registers: addresses and counters; the compiler's figures within 5 %


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

    @classmethod
    def of(cls, candidate: Candidate) -> SimtTile:
        bm, bn, bk, tm, tn, stages, raster = (
            int(candidate[name]) for name in ("bm", "bn", "bk", "tm", "tn", "stages", "raster")
        )
        return cls(bm, bn, bk, tm, tn, stages, str(candidate["copy"]), raster)

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
    """As `SimtTile`, float32 alone: A as it lies in memory, B a packed constant, `stages` tiles in flight.

    A thread computes rows 4 apart. `blocks` per multiprocessor at least: the compiler's limit of registers.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int
    blocks: int

    @classmethod
    def of(cls, candidate: Candidate) -> FmaTile:
        return cls(*(int(candidate[name]) for name in cls.__slots__))

    @property
    def threads(self) -> int:
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def shared_bytes(self) -> int:
        return self.stages * (self.bm * (self.bk + 4) + self.bk * self.bn) * 4

    @property
    def registers(self) -> int:
        return self.tm * self.tn + 4 * self.tm + self.tn + _OVERHEAD + self.bk - 8  # copies in flight: measured

    def rows_copied(self, vector: int) -> int:
        """Rows of A of which one thread copies `vector` elements each."""
        return self.bm * self.bk // vector // self.threads

    def obstacle(self, vector: int, device: CUDAModel) -> str:
        """Why a block of this tile does not work on `device`; "" where it does."""
        if self.bm % (self.tm * WARP_ROWS) or self.bn % (self.tn * WARP_COLUMNS) or self.tn % VECTOR or self.bk % 4:
            return "the tile is no multiple of a warp's"
        if device.capability < 80:
            return f"{device.arch} has no asynchronous copies"
        if self.stages < 2 or self.threads > device.max_threads_per_block:
            return f"{self.stages} stages, {self.threads} threads"
        if self.shared_bytes > device.shared_per_block_bytes:
            return f"{self.shared_bytes} bytes of shared memory, a block has {device.shared_per_block_bytes}"
        if (self.bm * self.bk) % (self.threads * vector) or (self.bn * self.bk) % (self.threads * VECTOR):
            return "the threads do not share the copies evenly"
        if self.threads % (self.bk // vector):
            return "the threads do not share a row evenly"
        return ""
