"""What a wgmma candidate decides, and what it costs a multiprocessor: shared memory and registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from subtune.candidate import Candidate, Knob
from subtune.workload import dtype_bits

ROW_BYTES = 128
"""Of k in a stage: one swizzled row of shared memory."""
_CHUNK_COLUMNS = {1: 64, 2: 64, 4: 32}
_CHUNK_PAD = {1: 16, 2: 8, 4: 8}  # elements: no two rows of a store in one bank
_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
_OTHER_REGISTERS = 56  # addresses, descriptors, the epilogue's elements
_FIXED_BYTES = 1024 + 1024  # alignment of the stages; barriers


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tile has `rows` of every group of rows and `columns`; k is copied in `stages` stages of 128 bytes.

    With `alternate` the consumers take tiles in turn, else they share one. `raster`: tiles of rows that are walked
    before the next column.
    """

    rows: tuple[int, ...]
    columns: int
    stages: int
    consumers: int = 2
    alternate: bool = False
    blocks_per_sm: int = 1
    raster: int = 1

    @classmethod
    def of(cls, candidate: Candidate) -> Tiling:
        return cls(
            rows=tuple(int(rows) for rows in str(candidate["rows"]).split("x")),
            columns=int(candidate["columns"]),
            stages=int(candidate["stages"]),
            consumers=int(candidate["consumers"]),
            alternate=bool(candidate["alternate"]),
            blocks_per_sm=int(candidate["blocks_per_sm"]),
            raster=int(candidate["raster"]),
        )

    def knobs(self) -> dict[str, Knob]:
        return {
            "rows": "x".join(map(str, self.rows)),
            "columns": self.columns,
            "stages": self.stages,
            "consumers": self.consumers,
            "alternate": self.alternate,
            "blocks_per_sm": self.blocks_per_sm,
            "raster": self.raster,
        }

    @property
    def m(self) -> int:
        """Rows of a tile."""
        return prod(self.rows)

    @property
    def m_consumer(self) -> int:
        """Rows of one consumer."""
        return self.m if self.alternate else self.m // self.consumers

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def setmaxnreg(self) -> tuple[int, int] | None:
        """Registers of a copying and of a multiplying thread; None where the launch bounds say how many."""
        return _REGISTERS[self.consumers] if self.blocks_per_sm == 1 else None

    def stage_bytes(self) -> int:
        return (self.m + self.columns) * ROW_BYTES

    def shared_bytes(self, stored: str) -> int:
        """Shared memory of a block whose results are exchanged as `stored`."""
        exchange = self.consumers * 4 * 16 * chunk_pitch(self.columns, stored) * dtype_bits(stored) // 8
        return self.stages * self.stage_bytes() + exchange + _FIXED_BYTES

    def obstacle(self, stored: str, shared_bytes: int, shared_per_sm_bytes: int) -> str:
        """Why no multiprocessor can run this; "" when one can."""
        if self.m_consumer % 64 or self.m % 64:
            return f"{self.m} rows are no multiple of 64 for each of {self.consumers} consumers"
        if self.columns % 16 or not 16 <= self.columns <= 256:
            return f"{self.columns} columns: a multiplication has 16, 32, ... 256"
        if self.stages < 2 or self.consumers not in _REGISTERS or (self.alternate and self.consumers != 2):
            return "stages or consumers out of range"
        needed = self.shared_bytes(stored)
        if needed > shared_bytes or self.blocks_per_sm * (needed + 1024) > shared_per_sm_bytes:
            return f"{needed} bytes of shared memory"
        sums = self.m_consumer // 64 * self.columns // 2
        most = self.setmaxnreg[1] if self.setmaxnreg else 65536 // (self.blocks_per_sm * self.threads) // 8 * 8
        if sums + _OTHER_REGISTERS > most:
            return f"{sums} sums of {most} registers"
        return ""


def chunk_columns(columns: int, stored: str) -> int:
    """Columns that a warp exchanges at once: 128 bytes, or less where the tile is narrow."""
    chunk = _CHUNK_COLUMNS[dtype_bits(stored) // 8]
    while columns % chunk:
        chunk //= 2
    return chunk


def chunk_pitch(columns: int, stored: str) -> int:
    """Elements from one row of the exchange to the next."""
    return chunk_columns(columns, stored) + _CHUNK_PAD[dtype_bits(stored) // 8]
