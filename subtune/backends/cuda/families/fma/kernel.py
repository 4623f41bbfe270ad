"""The part of a float32 product's kernel that multiplies (`fma_source`), and who holds which of its sums afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.families.fma.source import FMA
from subtune.backends.cuda.model.core_tiles import FmaTile
from subtune.backends.cuda.source.calls import address, called, end
from subtune.backends.cuda.source.emit import Code, const

_Triple = tuple[int, int, int]
_OUTSIDE = -(1 << 29)
"""The first pixel of a row that is none: no window reaches into the image from there."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How k runs over A: `taps` of `channels` elements, three window axes outside; a triple holds one value for each.

    `strides`: elements from tap to tap. `steps`: pixels from tap to tap, of `sizes` pixels that exist; 0 where a
    window never leaves the image. `vector`: elements of A that one copy may take. With `edge` the channels are those of
    several pixels of a row of `edge` elements, and the last of a window's first pixels is its first element.
    `pitch_b`: B is `[columns, *taps, channels]`, copied by `vector` elements too, so many elements from column to
    column; 0: it is `[*taps, channels, columns]`. `whole`: of a sum in unequal parts, the channels of all of them.
    """

    channels: int
    taps: _Triple = (1, 1, 1)
    strides: _Triple = (0, 0, 0)
    steps: _Triple = (0, 0, 0)
    sizes: _Triple = (0, 0, 0)
    vector: int = 4
    edge: int = 0
    pitch_b: int = 0
    whole: int = 0

    @property
    def k(self) -> int:
        return prod(self.taps) * self.channels


@dataclass(frozen=True, slots=True)
class Sums:
    """What a thread holds: the sum of `row(i)`, `column(j) + lane` is number `i * tn + j * vector + lane`."""

    registers: Any
    rows: int
    vector: int
    row: Callable[[Any], Any]
    column: Callable[[int], Any]


def multiply(
    code: Code,
    tile: FmaTile,
    walk: Walk,
    extents: tuple[int, int],
    first: tuple[Any, Any, Any],
    operands: tuple[Any, Any],
    window: Callable[[Any], tuple[Any, Any, Any, Any]],
    thread: Any,
    ends: Sequence[Any] = (),
) -> Sums:
    """Emit the product of one block.

    Args:
        extents: rows and columns of the whole product; columns are a multiple of 4.
        first: the block's first row and column, and its part of the sum.
        operands: addresses of A and B.
        window: of a row, the first element of its window and the first pixel along the three axes of the window.
        ends: of operands that the function allocates (`calls.address`).
    """
    m, n = extents
    rows, apart = tile.rows_copied(walk.vector), tile.threads * walk.vector // tile.bk
    base, high, wide = (code.local("int32", rows, name) for name in ("base", "h", "w"))
    deep = code.local("int32", rows, "d") if walk.taps[0] > 1 or walk.sizes[0] else high
    shared = code.dynamic("float32", tile.shared_bytes(walk.pitch_b > 0) // 4)
    sums = code.local("float32", tile.tm * tile.tn, "sum")
    with code.unrolled(rows) as j:
        row = code.bind("row", first[0] + tirx.floordiv(thread, const(tile.bk // walk.vector)) + j * apart, m + tile.bm)
        at, d, h, w = window(row)
        code.store(base, j, at.astype("int32"))
        if deep is not high:
            code.store(deep, j, d.astype("int32"))
        if m % tile.bm:
            h = tirx.Select(tirx.LT(row, const(m)), h, const(_OUTSIDE))
        code.store(high, j, h.astype("int32"))
        code.store(wide, j, w.astype("int32"))
    lies = _Place.of(thread, tile)
    numbers = (
        tile.bm, tile.bn, tile.bk, tile.tm, tile.tn, tile.stages, tile.slices, walk.vector, *walk.taps, walk.channels,
        *walk.strides, *walk.steps, *walk.sizes, walk.edge, n, walk.pitch_b, int(walk.whole > 0), int(tile.tensor),
    )  # fmt: skip
    arrays = [address(buffer, const(0)) for buffer in (shared, base, deep, high, wide)]
    name = f"subtune::Fma<{', '.join(map(str, numbers))}>::run"
    last = (walk.whole or walk.channels) - first[2] * walk.channels
    numbered = first[1], thread, lies.slice_, lies.row, lies.column, lies.lane, last
    arguments = (address(sums, const(0)), *operands, *arrays, *numbered, end(sums), end(shared), *ends)
    code.emit(called(name, arguments, FMA))
    return lies.sums(sums, first, tile)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in a block's tile a thread's sums lie: its slice, its first row, its warp's first column, and its lane's
    place among the columns."""

    slice_: Any
    row: Any
    column: Any
    lane: Any

    @classmethod
    def of(cls, thread: Any, tile: FmaTile) -> _Place:
        high, wide = tile.lanes
        across, of_slice = const(tile.bn // (wide * tile.tn)), const(tile.threads // tile.slices)
        warp = tirx.floordiv(tirx.floormod(thread, of_slice), const(32))
        lane_row, lane_column = _lane(tirx.floormod(thread, const(32)), tile)
        row = tirx.floordiv(warp, across) * (high * tile.tm) + lane_row
        column = tirx.floormod(warp, across) * (wide * tile.tn)
        return cls(tirx.floordiv(thread, of_slice), row, column, lane_column)

    def sums(self, registers: Any, first: tuple[Any, Any, Any], tile: FmaTile) -> Sums:
        high, wide = tile.lanes
        kept, together = tile.tm // tile.slices, tile.together

        def of_row(i: Any) -> Any:
            return first[0] + self.row + (self.slice_ * kept + i) * high

        def of_column(j: int) -> Any:  # after those that lie together come those of the next lane
            group, at = divmod(j * tile.vector, together)
            return first[1] + self.column + self.lane * together + group * (together * wide) + at

        return Sums(registers, kept, tile.vector, of_row, of_column)


def _lane(lane: Any, tile: FmaTile) -> tuple[Any, Any]:
    """Row and column of a warp's lane: on tensor cores 8 x 4 (PTX ISA, mma.m16n8k8).

    On CUDA cores, of its five bits 1 and 4 count rows and the others columns. Loads of 16 bytes take half of shared
    memory's cycles where every lane reads what lane ^ 1 reads, as here of A, or lane ^ 2, as of B (G. Smith, NVIDIA's
    developer forum; CUTLASS's warps have their lanes like that).
    """
    if tile.tensor:
        return tirx.floordiv(lane, const(4)), tirx.floormod(lane, const(4))
    row = tirx.floormod(tirx.floordiv(lane, const(2)), const(2)) + tirx.floordiv(lane, const(16)) * 2
    column = tirx.floormod(lane, const(2)) + tirx.floormod(tirx.floordiv(lane, const(4)), const(4)) * 2
    return row, column
