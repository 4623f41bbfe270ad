"""What a wgmma candidate decides, and what it costs a multiprocessor: shared memory and registers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.many_shapes import TileShape
from subtune.core.candidate import Knob
from subtune.core.numerics import BYTES, Numerics
from subtune.core.workload import dtype_bits

DTYPES = ("float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2")

ROW_BYTES = 128
"""Of k in a stage: the longest row of shared memory that copies swizzle."""
SWIZZLES = {32: 1, 64: 2, ROW_BYTES: 3}
"""CUtensorMapSwizzle by the bytes of a row."""
_CHUNK_COLUMNS = {1: 64, 2: 64, 4: 32}
_CHUNK_PAD = {1: 16, 2: 8, 4: 8}  # elements: no two rows of a store in one bank
_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
_OTHER_REGISTERS = 56  # addresses, descriptors, the epilogue's elements
_CLUSTERS = (1, 2, 4, 8)  # blocks: those that every device can place
_FIXED_BYTES = 1024 + 1024  # alignment of the stages; barriers

_WIDE, _WAITED_S = 8, 0.6e-6
"""Blocks of a cluster, and how long it waits behind another kernel until as many multiprocessors of one GPC are free at
the same moment. Of four it is not seen (BERT of 64 rows on an H200, by the ends of its kernels)."""
_ROOM_S, _USUAL_BYTES = 5e-12, 1 << 17
"""Of a byte of a multiprocessor's shared memory that blocks leave of the second: kernels behind them start early there,
and copy weights while these run. Alone, where a kernel follows itself, that is not seen. Between tiles of 32 and of 64
columns it is 0.2 us, and 3 % of BERT of 64 rows on an H200."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tile has `rows` of every group of rows and `columns`; k is copied in `stages` stages of `row_bytes`: 128, or
    less where k is no multiple of that, as zeros are copied slowly.

    With `alternate` the consumers take tiles in turn, else they share one. `raster`: tiles of rows that are walked
    before the next column. `cluster`: so many blocks, one below the other, get their columns of B by one copy. `split`:
    so many blocks of a cluster share a tile, each has a part of k. `boxes`: a tile is so many boxes of `rows`, one for
    each consumer, not necessarily neighbours: tiles of rows that no single box has. `promote`: every step is summed by
    itself and added to the others in float32, as tensor cores keep few bits of long sums of float8.

    `swapped`: columns of B are the rows of a multiplication, and the tile's rows its columns: the sums are transposed.
    Then 64 columns are read with 256 rows at once, and consumers that share a tile have some of its columns each.

    `taps`: so many steps, the taps of a window one below the other, are multiplied from one copy of their rows of
    pixels: those of the tile and the ones that the last tap reads beyond. `resident`: so many steps, all there are, for
    which B is copied once and stays. `single`: there are as many blocks as tiles. `few`: a tile may have more rows than
    there are, which is told at run time; those that lack are not copied. `fitted`: so are the tiles, and there are no
    more blocks than these: the next kernel's find room.
    """

    rows: tuple[int, ...]
    columns: int
    stages: int
    consumers: int = 2
    alternate: bool = False
    blocks_per_sm: int = 1
    raster: int = 1
    cluster: int = 1
    split: int = 1
    boxes: int = 1
    promote: bool = False
    row_bytes: int = ROW_BYTES
    swapped: bool = False
    taps: int = 1
    resident: int = 0
    single: bool = False
    few: bool = False
    fitted: bool = False

    @property
    def shape(self) -> TileShape:
        waited_s = _WAITED_S if self.cluster * self.split >= _WIDE else 0.0
        room = max(0, _USUAL_BYTES - self.ring_bytes() * self.blocks_per_sm)
        return TileShape(self.m, behind_s=waited_s - _ROOM_S * room)

    def knobs(self) -> dict[str, Knob]:
        return {
            "rows": "x".join(map(str, self.rows)),
            "columns": self.columns,
            "stages": self.stages,
            "consumers": self.consumers,
            "alternate": self.alternate,
            "blocks_per_sm": self.blocks_per_sm,
            "raster": self.raster,
            **{name: count for name in ("cluster", "split", "boxes", "taps") if (count := getattr(self, name)) > 1},
            **({"promote": True} if self.promote else {}),
            **({"row_bytes": self.row_bytes} if self.row_bytes != ROW_BYTES else {}),
            **({"swapped": True} if self.swapped else {}),
            **({"resident": self.resident} if self.resident else {}),
            **({name: True for name in ("single", "few", "fitted") if getattr(self, name)}),
        }

    @property
    def m(self) -> int:
        """Rows of a tile."""
        return prod(self.rows) * self.boxes

    @property
    def m_consumer(self) -> int:
        """Rows of one consumer."""
        return self.m if self.alternate or self.swapped else self.m // self.consumers

    @property
    def multiplied(self) -> tuple[int, int]:
        """Multiplications of a consumer for 32 bytes of k, of 64 rows each, and the columns of one."""
        return (self.stored_columns // 64, self.m) if self.swapped else (self.m_consumer // 64, self.columns)

    @property
    def threads(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def setmaxnreg(self) -> tuple[int, int] | None:
        """Registers of a copying and of a multiplying thread; None where the launch bounds say how many."""
        return _REGISTERS[self.consumers] if self.blocks_per_sm == 1 else None

    @property
    def stored_columns(self) -> int:
        """Columns of a tile that one consumer stores."""
        return self.columns // (self.consumers if self.swapped and not self.alternate else self.split)

    def fetched_elements(self) -> int:
        """Of four bytes: what depends on the column alone, for every consumer's tile and the one after it."""
        return 2 * self.consumers * self.stored_columns

    def exchange_elements(self, stored: str) -> int:
        """Through which a block's results go to the threads that store them."""
        if self.swapped:
            return self.consumers * 2 * transposed_rows(self.m, stored) * transposed_pitch(stored)
        return self.consumers * 4 * 16 * chunk_pitch(self.stored_columns, stored)

    @property
    def copied_rows(self) -> int:
        """Of A in a stage."""
        return self.m // self.rows[-2] * (self.rows[-2] + self.taps - 1) if self.taps > 1 else self.m

    def copied_row(self, row: Any) -> Any:
        """Where row `row` of a tile, a multiple of 64, begins among the copied ones: other images may begin between."""
        if self.taps == 1:
            return row
        image = prod(self.rows[-2:])
        return row // image * (image + (self.taps - 1) * self.rows[-1]) + row % image

    def ring_bytes(self) -> int:
        """Of all stages, with what of B stays."""
        of_b = (self.resident or self.stages) * self.taps * self.columns
        return (self.stages * self.copied_rows + of_b) * self.row_bytes

    def shared_bytes(self, stored: str, fetched: int = 0) -> int:
        """Shared memory of a block whose results are exchanged as `stored`, with `fetched` operands per column."""
        exchange = self.exchange_elements(stored) * dtype_bits(stored) // 8
        return self.ring_bytes() + exchange + fetched * self.fetched_elements() * 4 + _FIXED_BYTES

    def room(self, shared_bytes: int, shared_per_sm_bytes: int) -> int:
        """Bytes of shared memory that a block has, where so many lie together; 1024 of each are the driver's."""
        return min(shared_bytes, shared_per_sm_bytes // self.blocks_per_sm - 1024)

    def obstacle(self, stored: str, shared_bytes: int, shared_per_sm_bytes: int, fetched: int = 0) -> str:
        """Why no multiprocessor can run this; "" when one can."""
        if why := self._swapped_obstacle() if self.swapped else self._plain_obstacle():
            return why
        if self.stages < 2 or self.consumers not in _REGISTERS or (self.alternate and self.consumers != 2):
            return "stages or consumers out of range"
        if self.row_bytes not in SWIZZLES:
            return f"rows of {self.row_bytes} bytes"
        if self.boxes > 1 and (self.boxes != self.consumers or self.alternate or prod(self.rows) % 64):
            return f"{self.boxes} boxes of {prod(self.rows)} rows for {self.consumers} consumers"
        if why := self._cluster_obstacle() or self._taps_obstacle():
            return why
        needed = self.shared_bytes(stored, fetched)
        if needed > self.room(shared_bytes, shared_per_sm_bytes):
            return f"{needed} bytes of shared memory"
        if self.spare_registers < 0:
            return f"{self._sums} sums of {self._registers} registers"
        return ""

    @property
    def _sums(self) -> int:
        count, columns = self.multiplied
        return count * columns // 2 * (1 + self.promote)

    @property
    def _registers(self) -> int:
        """Of a multiplying thread."""
        return self.setmaxnreg[1] if self.setmaxnreg else 65536 // (self.blocks_per_sm * self.threads) // 8 * 8

    @property
    def spare_registers(self) -> int:
        """Of a multiplying thread, beside its sums and what every kernel needs."""
        return self._registers - self._sums - _OTHER_REGISTERS

    def _plain_obstacle(self) -> str:
        if self.m_consumer % 64 or self.m % 64:
            return f"{self.m} rows are no multiple of 64 for each of {self.consumers} consumers"
        if self.columns % 16 or not 16 <= self.columns <= 256:
            return f"{self.columns} columns: a multiplication has 16, 32, ... 256"
        return ""

    def _swapped_obstacle(self) -> str:
        if self.stored_columns % 64 or self.columns % 64:
            return f"{self.columns} columns are no multiple of 64 for each of {self.consumers} consumers"
        if self.m % 16 or not 16 <= self.m <= 256:
            return f"{self.m} rows: a swapped multiplication has 16, 32, ... 256"
        return "swapped operands with a split sum, several boxes, or a promoted sum" if self._is_special else ""

    def _taps_obstacle(self) -> str:
        if self.taps == 1:
            return ""
        if len(self.rows) < 2 or self.rows[-1] % 8:  # what is swizzled as one
            return f"several taps of rows of {self.rows[-1]}"
        if prod(self.rows[:-2]) > 1 if self.swapped else prod(self.rows[-2:]) % 64:
            return "several taps where a multiplication has rows of several images"
        return "several taps with a split sum, several boxes, or a promoted sum" if self._is_special else ""

    @property
    def _is_special(self) -> bool:
        return self.split > 1 or self.boxes > 1 or self.promote

    def _cluster_obstacle(self) -> str:
        if self.cluster not in _CLUSTERS or self.split not in _CLUSTERS or (self.cluster > 1 and self.split > 1):
            return f"clusters of {self.cluster} times {self.split}"
        if self.columns % (8 * self.cluster) or self.stored_columns % 16:
            return f"{self.columns} columns for {self.cluster * self.split} blocks"
        if self.split > 1 and (self.alternate or self.m * self.columns * 4 > self.ring_bytes()):
            return "sums that take more shared memory than the stages"
        if self.split > 1 and self.resident:
            return "a split sum for which B would stay"
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


def transposed_rows(rows: int, stored: str) -> int:
    """Rows that the threads of a consumer exchange at once where sums are transposed: 4 KB of 64 columns, or less."""
    chunk = 4096 // 64 // (dtype_bits(stored) // 8)
    while rows % chunk:
        chunk //= 2
    return chunk


def transposed_pitch(stored: str) -> int:
    """Elements from one row of that exchange to the next: 16 bytes more than 64 columns, so that no bank has two."""
    return 64 + 16 * 8 // dtype_bits(stored)


def wgmma_obstacle(problem: Problem[CUDAModel]) -> str:
    """Why there are no warpgroup instructions; "" where there are."""
    is_allowed = problem.device.arch == "sm_90a" and problem.numerics.tensor_core != "off"
    return "" if is_allowed else "wgmma needs sm_90a, and the user's leave"


def are_multiplied(a: str, b: str, numerics: Numerics) -> bool:
    """Whether tensor cores multiply elements of the types `a` and `b` as the user allows: bytes with or without signs
    in any pair."""
    is_one = a == b or {a, b} <= BYTES
    return is_one and (a in DTYPES or (a == "float32" and numerics.tf32))
