"""Transposed sums change threads: a multiplication whose operands are swapped has columns of the tile as its rows.

    of 64 columns, warp w has 16w ..., thread t of it 16w + t / 4 and 8 more; of every 8 rows, 2 (t % 4) and the next

So the four warps of a consumer hand one another some rows of 64 columns at a time. There are two buffers for them: a
chunk is put while others still read the one before, and one barrier a chunk is enough.
Source: PTX ISA 8, register fragments of wgmma's D, and stmatrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.exchange import Ready, Staged
from subtune.backends.cuda.families.wgmma.tiling import Tiling, transposed_pitch, transposed_rows
from subtune.core.workload import dtype_bits

_MATRICES = "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
_THREADS = 128  # of a consumer
_COLUMNS = 64  # of a chunk: rows of a multiplication


@dataclass(frozen=True, slots=True)
class TransposedExchange:
    """An `Exchange` of some rows and 64 columns among the threads of a warpgroup."""

    tiling: Tiling
    dtype: str
    vector: int

    @property
    def rows(self) -> int:
        return transposed_rows(self.tiling.m, self.dtype)

    @property
    def _pitch(self) -> int:
        return transposed_pitch(self.dtype)

    @property
    def _across(self) -> int:
        return self.tiling.stored_columns // _COLUMNS

    @property
    def turns(self) -> int:
        return self.rows * self.threads_of_row // _THREADS

    @property
    def threads_of_row(self) -> int:
        return _COLUMNS // self.vector

    def chunks(self, rows: int) -> int:
        return rows // self.rows * self._across

    def shared_elements(self) -> int:
        return self.tiling.exchange_elements(self.dtype)

    def there(self, staging: Any) -> Any:
        return staging

    def place(self, chunk: Any, turn: Any, lane: Any) -> tuple[Any, Any, Any]:
        per_row = self.threads_of_row
        r: Any = T.Bind((turn * _THREADS + lane) // per_row)
        c: Any = T.Bind((turn * _THREADS + lane) % per_row * self.vector)
        where = self._buffer(chunk) + r * self._pitch + c
        return where, chunk // self._across * self.rows + r, chunk % self._across * _COLUMNS + c

    def _buffer(self, chunk: Any) -> Any:
        return chunk % 2 * (self.rows * self._pitch)

    def base(self, consumer: Any, lane: Any) -> Any:
        return consumer * (2 * self.rows * self._pitch)

    def _column(self, own: Any, lane: Any) -> Any:
        """The `own`th of a thread's columns: it has two of every 64."""
        return own // 2 * _COLUMNS + lane // 32 * 16 + own % 2 * 8 + lane % 32 // 4

    def ready(self, shared: Sequence[Any], base: Any, lane: Any) -> Ready:
        kept = []  # in registers, as they are so few
        for there in shared:
            registers = T.alloc_local((2 * self._across,), str(there.dtype))
            for i in range(2 * self._across):
                T.buffer_store(registers, there[base + self._column(i, lane)], [i])
            kept.append(registers)
        return lambda _, own: [registers[own] for registers in kept]

    def put(self, staged: Staged, eight: Any, there: Any, base: Any, chunk: Any, lane: Any) -> None:
        across, pitch = self._across, self._pitch
        warp, thread = lane // 32, lane % 32
        begin = chunk % across * (self.tiling.m // 2) + chunk // across * (self.rows // 2)  # of the sums

        # fmt: off
        @T.inline
        def body() -> None:
            for j in T.unroll(self.rows // 16):
                for e in T.unroll(8):  # two rows, the same eight columns further, the same eight rows further
                    own = T.meta_var(chunk % across * 2 + e // 2 % 2)
                    eight[e] = staged(begin + j * 8 + e, self._column(own, lane), own)
                if dtype_bits(self.dtype) == 16:
                    words = eight.view("uint32")
                    row = T.meta_var(j * 16 + thread // 16 * 8 + thread % 8)
                    where = T.meta_var(
                        base + self._buffer(chunk) + row * pitch + warp * 16 + thread // 8 % 2 * 8)
                    T.ptx[_MATRICES](there.ptr_to([where]), words[0], words[1], words[2], words[3])
                else:
                    for e in T.unroll(8):
                        row = T.meta_var(j * 16 + e // 4 * 8 + thread % 4 * 2 + e % 2)
                        there[base + self._buffer(chunk) + row * pitch + self._column(e // 2 % 2, lane)] = eight[e]
        # fmt: on

        body()

    def meet(self, consumer: Any) -> None:
        T.evaluate(T.cuda.warpgroup_sync(consumer + 1))

    def leave(self) -> None:
        T.evaluate(T.cuda.warp_sync())

    def part(self, consumer: Any, chunks: int) -> None:
        if chunks % 2:  # the next chunk's buffer is that of the last one
            T.evaluate(T.cuda.warpgroup_sync(consumer + 1))
