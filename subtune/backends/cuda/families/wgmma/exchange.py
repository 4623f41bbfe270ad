"""Sums change threads, in shared memory: from those that multiplied to those that store 16 bytes of a row.

That is done a chunk of the consumer's tile at a time. A warp has 16 rows of sums and exchanges those of 128 bytes of
columns; where operands are swapped it is a warpgroup that exchanges (`transposed`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.tiling import Tiling, chunk_columns, chunk_pitch
from subtune.core.workload import dtype_bits

STORE_MATRICES = "stmatrix.sync.aligned.m8n8.x4.shared.b16"

Staged = Callable[[Any, Any, Any], Any]
"""What is exchanged for a sum: by its register, its column of the tile, and which of the thread's columns that is."""
Ready = Callable[[Any, Any], list[Any]]
"""Operands of a column: by the column of the tile, and which of the thread's it is."""


class Exchange(Protocol):
    """How elements of `dtype` of a consumer's tile change threads, to those that have `vector` of a row each.

    `turns`: vectors of a thread in a chunk. Whatever the chunk, the rows that a warp has then are its own.
    """

    @property
    def turns(self) -> int: ...

    @property
    def vector(self) -> int: ...

    @property
    def threads_of_row(self) -> int:
        """Neighbours of a warp that have a row of a chunk."""

    def chunks(self, rows: int) -> int:
        """Of so many rows of the tile."""

    def shared_elements(self) -> int:
        """Of a block."""

    def there(self, staging: Any) -> Any:
        """Where a chunk lies for those who read it; `staging` is the block's shared memory."""

    def place(self, chunk: Any, turn: Any, lane: Any) -> tuple[Any, Any, Any]:
        """A thread's vector: where it lies `there`, its row and first column of the consumer's tile."""

    def base(self, consumer: Any, lane: Any) -> Any:
        """Where a thread's part of the exchange begins."""

    def ready(self, shared: Sequence[Any], base: Any, lane: Any) -> Ready:
        """The columns' operands that are in `shared` from `base` on."""

    def put(self, staged: Staged, eight: Any, there: Any, base: Any, chunk: Any, lane: Any) -> None:
        """This thread's part of a chunk `there`, by registers for `eight` elements."""

    def meet(self, consumer: Any) -> None:
        """After a chunk was put: it can be read."""

    def leave(self) -> None:
        """After a chunk was read by this thread."""

    def part(self, consumer: Any, chunks: int) -> None:
        """After the last of so many chunks: the next tile's may be put."""


@dataclass(frozen=True, slots=True)
class WarpExchange:
    """16 rows and 128 bytes of columns, or less where the tile is narrow, among the threads of a warp."""

    tiling: Tiling
    dtype: str
    vector: int

    @property
    def width(self) -> int:
        return chunk_columns(self.tiling.stored_columns, self.dtype)

    @property
    def _pitch(self) -> int:
        return chunk_pitch(self.tiling.stored_columns, self.dtype)

    @property
    def _across(self) -> int:
        return self.tiling.stored_columns // self.width

    @property
    def turns(self) -> int:
        return 16 * self.threads_of_row // 32

    @property
    def threads_of_row(self) -> int:
        return self.width // self.vector

    def chunks(self, rows: int) -> int:
        return rows // 64 * self._across

    def shared_elements(self) -> int:
        return self.tiling.exchange_elements(self.dtype)

    def there(self, staging: Any) -> Any:
        return staging

    def place(self, chunk: Any, turn: Any, lane: Any) -> tuple[Any, Any, Any]:
        per_row = self.threads_of_row
        r: Any = T.Bind((turn * 32 + lane % 32) // per_row)
        c: Any = T.Bind((turn * 32 + lane % 32) % per_row * self.vector)
        row = chunk // self._across * 64 + lane // 32 * 16 + r
        return r * self._pitch + c, row, chunk % self._across * self.width + c

    def base(self, consumer: Any, lane: Any) -> Any:
        return (consumer * 4 + lane // 32) * (16 * self._pitch)

    def ready(self, shared: Sequence[Any], base: Any, lane: Any) -> Ready:
        return lambda column, _: [there[base + column] for there in shared]

    def put(self, staged: Staged, eight: Any, there: Any, base: Any, chunk: Any, lane: Any) -> None:
        def first_of(j: Any, h: Any) -> Any:
            """Column of the first of two sums: h is half of the 16 columns, then half of the 16 rows."""
            return j * 16 + h // 2 * 8 + lane % 4 * 2

        # fmt: off
        @T.inline
        def body() -> None:
            for j in T.unroll(self.width // 16):
                for e in T.unroll(8):
                    eight[e] = staged(chunk * (self.width // 2) + j * 8 + e,
                                      chunk % self._across * self.width + first_of(j, e // 2) + e % 2, e)
                if dtype_bits(self.dtype) == 16:
                    words = eight.view("uint32")
                    where = T.meta_var(base + lane % 16 * self._pitch + j * 16 + lane % 32 // 16 * 8)
                    T.ptx[STORE_MATRICES](there.ptr_to([where]), words[0], words[1], words[2], words[3])
                else:
                    for h in T.unroll(4):
                        for v in T.vectorized(2):
                            row = T.meta_var(lane % 32 // 4 + h % 2 * 8)
                            there[base + row * self._pitch + first_of(j, h) + v] = eight[h * 2 + v]
        # fmt: on

        body()

    def meet(self, consumer: Any) -> None:
        T.evaluate(T.cuda.warp_sync())

    def leave(self) -> None:
        T.evaluate(T.cuda.warp_sync())

    def part(self, consumer: Any, chunks: int) -> None:
        return  # a warp's threads have met after each
