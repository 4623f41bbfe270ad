"""Tiles of matrix products on CUDA cores, and the reasons why one does not fit a device. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from subtune.candidate import Candidate
from subtune.cuda import CUDAModel
from subtune.gemm import Gemm, block_obstacle
from subtune.workload import dtype_bits

WARP_ROWS, WARP_COLUMNS = 4, 8  # lanes of a warp over its tile: a float4 of A for 4, one of B for 8 distinct addresses
VECTOR = 4
_OVERHEAD = 20  # registers: addresses and counters


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
        return self.tm * self.tn + 2 * (self.tm + self.tn) + staged + _OVERHEAD

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
