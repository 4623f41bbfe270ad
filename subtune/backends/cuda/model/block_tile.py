"""Tiles of a product that a thread block computes, and what of a GPU they may take."""

from __future__ import annotations

from typing import Protocol

from subtune.backends.cuda.device import CUDAModel
from subtune.patterns.gemm import Gemm


class BlockTile(Protocol):
    """What a thread block computes of a product, whichever units multiply."""

    @property
    def threads(self) -> int: ...

    @property
    def stages(self) -> int: ...

    def shared_bytes(self, gemm: Gemm) -> int: ...

    def registers(self, gemm: Gemm) -> int: ...

    def steps(self, gemm: Gemm) -> int: ...


def block_obstacle(tile: BlockTile, gemm: Gemm, device: CUDAModel) -> str:
    """What of `device` a block of this tile exceeds; "" where it fits."""
    if tile.threads > device.max_threads_per_block:
        return f"{tile.threads} threads, a block has at most {device.max_threads_per_block}"
    if tile.shared_bytes(gemm) > device.shared_per_block_bytes:
        return f"{tile.shared_bytes(gemm)} bytes of shared memory, a block has {device.shared_per_block_bytes}"
    registers = min(device.max_registers_per_thread, device.registers_per_sm // tile.threads)
    if tile.registers(gemm) > registers:
        return f"about {tile.registers(gemm)} registers per thread, there are {registers}"
    if tile.stages > max(1, tile.steps(gemm)):
        return f"{tile.stages} stages for {tile.steps(gemm)} steps"
    return ""
