"""Sums that need not change threads: columns are packed in such an order that a thread has neighbours of a row.

Of 8 columns of a multiplication a thread has two. Where a constant B has columns 16c + 2j + e of every 64 at
8j + 2c + e, thread c of a row has 16 neighbours: 16 bytes, where results are bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm.script import tirx as T

from subtune.backends.cuda.families.wgmma.exchange import Ready, Staged
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.core.kernel import ConstantTransform
from subtune.core.workload import dtype_bits
from subtune.patterns.axes import Operand
from subtune.patterns.gemm_view import GemmView

_WIDTH = 64
_OF_ROW = 4  # threads
_PAIR = 2  # columns of a thread, of 8


def may_be_in_place(tiling: Tiling, view: GemmView, b: Operand, dtype: str) -> bool:
    """Whether threads could have neighbours of all columns, and 16 bytes of them; `dtype`: of results."""
    is_plain = b.is_constant and not tiling.swapped and tiling.split == 1
    return is_plain and dtype_bits(dtype) == 8 and not tiling.columns % _WIDTH and not view.extent(view.n) % _WIDTH


@dataclass(frozen=True, slots=True)
class NeighbouringColumns:
    """A `ConstantTransform`: `packing`, if there is one, and then the order of sums (above).

    `shape`: as packed, `extents`: the same dims, without those of one element. `dim` of these has the columns.
    """

    packing: ConstantTransform | None
    shape: tuple[int, ...]
    extents: tuple[int, ...]
    dim: int

    def __call__(self, array: np.ndarray) -> np.ndarray:
        packed = self.packing(array) if self.packing else array
        return neighbouring(packed.reshape(self.extents), self.dim).reshape(self.shape)


def neighbouring(array: np.ndarray, dim: int) -> np.ndarray:
    """`array` with every 64 elements along `dim` in the order of sums."""
    outer, inner = prod(array.shape[:dim]), prod(array.shape[dim + 1 :])
    parts = array.reshape(outer, -1, _OF_ROW, _WIDTH // (_OF_ROW * _PAIR), _PAIR, inner)
    return np.ascontiguousarray(parts.transpose(0, 1, 3, 2, 4, 5)).reshape(array.shape)


def in_order_of_sums(
    b: Operand, view: GemmView, packings: tuple[tuple[int, ConstantTransform], ...]
) -> tuple[tuple[int, NeighbouringColumns]]:
    """How B is packed then; `packings`: as it would be otherwise."""
    packing = packings[0][1] if packings else None
    (dim,) = (i for i, d in enumerate(view.b) if d.group == view.n)
    shape = packing.shape if packing else tuple(b.shape)
    return ((b.param, NeighbouringColumns(packing, shape, tuple(d.extent for d in view.b), dim)),)


@dataclass(frozen=True, slots=True)
class InPlace:
    """An `Exchange` in which nothing changes threads: a thread stores 16 of its own sums of a row.

    A chunk is 64 rows and 64 columns; of a thread's two rows each is a turn.
    """

    tiling: Tiling
    dtype: str

    turns = 2
    threads_of_row = _OF_ROW
    vector = _WIDTH // _OF_ROW

    @property
    def _across(self) -> int:
        return self.tiling.columns // _WIDTH

    def chunks(self, rows: int) -> int:
        return rows // 64 * self._across

    def shared_elements(self) -> int:
        return 1

    def there(self, staging: Any) -> Any:
        return T.alloc_local((self.turns * self.vector,), self.dtype)

    def place(self, chunk: Any, turn: Any, lane: Any) -> tuple[Any, Any, Any]:
        row = chunk // self._across * 64 + lane // 32 * 16 + turn * 8 + lane % 32 // _OF_ROW
        return turn * self.vector, row, chunk % self._across * _WIDTH + lane % _OF_ROW * self.vector

    def base(self, consumer: Any, lane: Any) -> Any:
        return 0

    def ready(self, shared: Sequence[Any], base: Any, lane: Any) -> Ready:
        return lambda column, _: [there[base + column] for there in shared]

    def put(self, staged: Staged, eight: Any, there: Any, base: Any, chunk: Any, lane: Any) -> None:
        begin, column = chunk * (_WIDTH // 2), chunk % self._across * _WIDTH + lane % _OF_ROW * self.vector

        # fmt: off
        @T.inline
        def body() -> None:
            for turn in T.unroll(self.turns):
                for v in T.unroll(self.vector):
                    there[turn * self.vector + v] = staged(begin + v // 2 * 4 + turn * 2 + v % 2, column + v, v)
        # fmt: on

        body()

    def meet(self, consumer: Any) -> None:
        return

    def leave(self) -> None:
        return

    def part(self, consumer: Any, chunks: int) -> None:
        return
