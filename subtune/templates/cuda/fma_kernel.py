"""The part of a float32 product's kernel that multiplies (`fma_source`), and who holds which of its sums afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from subtune.forms.cuda_core import WARP_COLUMNS, WARP_ROWS, FmaTile
from subtune.templates.cuda.emit import Code, const
from subtune.templates.cuda.fma_source import FMA, address, called, end

_OUTSIDE = -(1 << 29)
"""The first pixel of a row that is none: no window reaches into the image from there."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How k runs over A: `taps` of `channels` elements, two window axes outside; a pair holds one value for each.

    `strides`: elements from tap to tap. `steps`: pixels from tap to tap, of `sizes` pixels that exist; 0 where a
    window never leaves the image. `vector`: elements of A that one copy may take. With `edge` the channels are those of
    several pixels of a row of `edge` elements, and the second of a window's first pixels is its first element.
    """

    channels: int
    taps: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (0, 0)
    sizes: tuple[int, int] = (0, 0)
    vector: int = 4
    edge: int = 0

    @property
    def k(self) -> int:
        return self.taps[0] * self.taps[1] * self.channels


@dataclass(frozen=True, slots=True)
class Sums:
    """What a thread holds: the sum of `row(i)`, `column(j) + lane` of the block is number `i * tn + j * 4 + lane`."""

    registers: Any
    row: Callable[[Any], Any]
    column: Callable[[int], Any]


def multiply(
    code: Code,
    tile: FmaTile,
    walk: Walk,
    extents: tuple[int, int],
    first: tuple[Any, Any],
    operands: tuple[Any, Any],
    window: Callable[[Any], tuple[Any, Any, Any]],
    thread: Any,
    ends: Sequence[Any] = (),
) -> Sums:
    """Emit the product of one block.

    Args:
        extents: rows and columns of the whole product; columns are a multiple of 4.
        first: the block's first row and column.
        operands: addresses of A, and of B packed `[*taps, channels, columns]`.
        window: of a row, the first element of its window and the first pixel along both axes of the window.
        ends: of operands that the function allocates (`fma_source.address`).
    """
    m, n = extents
    rows, apart = tile.rows_copied(walk.vector), tile.threads * walk.vector // tile.bk
    base, high, wide = (code.local("int32", rows, name) for name in ("base", "h", "w"))
    shared = code.dynamic("float32", tile.shared_bytes // 4)
    sums = code.local("float32", tile.tm * tile.tn, "sum")
    with code.unrolled(rows) as j:
        row = code.bind("row", first[0] + tirx.floordiv(thread, const(tile.bk // walk.vector)) + j * apart, m + tile.bm)
        at, h, w = window(row)
        code.store(base, j, at.astype("int32"))
        if m % tile.bm:
            h = tirx.Select(tirx.LT(row, const(m)), h, const(_OUTSIDE))
        code.store(high, j, h.astype("int32"))
        code.store(wide, j, w.astype("int32"))
    numbers = (
        tile.bm, tile.bn, tile.bk, tile.tm, tile.tn, tile.stages, walk.vector, *walk.taps, walk.channels,
        *walk.strides, *walk.steps, *walk.sizes, walk.edge, n,
    )  # fmt: skip
    arrays = [address(buffer, const(0)) for buffer in (shared, base, high, wide)]
    name = f"subtune::Fma<{', '.join(map(str, numbers))}>::run"
    arguments = (address(sums, const(0)), *operands, *arrays, first[1], thread, end(shared), *ends)
    code.emit(called(name, arguments, FMA))
    across = tile.bn // (WARP_COLUMNS * tile.tn)
    warp, lane = tirx.floordiv(thread, const(32)), tirx.floormod(thread, const(32))

    def of_row(i: Any) -> Any:
        in_warp = tirx.floordiv(lane, const(WARP_COLUMNS)) + i * WARP_ROWS
        return first[0] + tirx.floordiv(warp, const(across)) * (WARP_ROWS * tile.tm) + in_warp

    def of_column(j: int) -> Any:
        in_warp = tirx.floormod(lane, const(WARP_COLUMNS)) * 4 + j * 4 * WARP_COLUMNS
        return first[1] + tirx.floormod(warp, const(across)) * (WARP_COLUMNS * tile.tn) + in_warp

    return Sums(sums, of_row, of_column)
