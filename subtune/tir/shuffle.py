"""Vectors turned, interleaved and taken apart by shuffles of constant indices, which LLVM makes instructions of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

_QUAD = 4
"""32-bit elements of 128 bits: x86 shuffles inside of those in a cycle, and moves them as wholes."""


def unpacked(lanes: int, size: int) -> list[list[int]]:
    """Indices of the lower and of the upper halves of two vectors' quads, `size` elements of either in turns."""
    return [
        [quad + half + i + which + k for quad in range(0, lanes, _QUAD)
         for i in range(0, _QUAD // 2, size) for which in (0, lanes) for k in range(size)]
        for half in (0, _QUAD // 2)
    ]  # fmt: skip


def turned(rows: Sequence[Any], name: str) -> tuple[list[Any], list[Any]]:
    """Statements that transpose a matrix of as many rows as a vector has lanes, and its columns (variables).

    log2(n) rounds of one shuffle of two vectors a row: squares of 4 x 4 elements are turned in their places, then the
    matrix of such squares' rows. Each shuffle is one instruction: unpack or shuffle of 128-bit parts, zip on Arm.

    Args:
        rows: a vector a column; with fewer columns than lanes each holds the rows that `rows_beside` tells.
    """
    lanes = lanes_of(rows[0])
    assert lanes & (lanes - 1) == 0 == lanes % len(rows), f"{len(rows)} vectors of {lanes} elements"
    statements: list[Any] = []

    def bound(pair: Sequence[Any], indices: Sequence[int]) -> Any:
        var = tirx.Var(f"{name}{len(statements)}", str(rows[0].ty.dtype))
        statements.append(tirx.Bind(var, shuffled(pair, indices)))
        return var

    def gathered(vectors: list[Any], size: int) -> list[Any]:
        """Of `vectors` with at least as many parts of `size` elements: the first parts of all, the second ones, ...

        Of n vectors the first parts are those at 0, n, 2 n, ...
        """
        if len(vectors) == 1:
            return vectors
        halves = []
        for first in (0, size):
            indices = [at + i for at in range(first, 2 * lanes, 2 * size) for i in range(size)]
            halves.append(gathered([bound(vectors[i : i + 2], indices) for i in range(0, len(vectors), 2)], size))
        return [vector for pair in zip(*halves, strict=True) for vector in pair]

    if len(rows) < _QUAD:
        return statements, gathered(list(rows), 1)
    squares: list[list[Any]] = []
    for at in range(0, len(rows), _QUAD):
        (a, b), (c, d) = ([bound(rows[i : i + 2], half) for half in unpacked(lanes, 1)] for i in (at, at + 2))
        squares.append([bound(pair, half) for pair in ((a, c), (b, d)) for half in unpacked(lanes, 2)])
    columns = [gathered(list(column), _QUAD) for column in zip(*squares, strict=True)]
    return statements, [columns[i % _QUAD][i // _QUAD] for i in range(len(rows))]


def rows_beside(vector: int, columns: int, lanes: int) -> list[int]:
    """Rows of a matrix with `lanes` rows of `columns` elements that lie side by side in a vector `turned` takes."""
    size, count = _QUAD if columns >= _QUAD else 1, lanes // columns
    first, i = vector // size * size * count, vector % size
    return [first + at * size + i for at in range(count)]


def side_by_side(vectors: Sequence[Any]) -> Any:
    """x0 x1 ..., y0 y1 ... -> x0 x1 ... y0 y1 ..."""
    return vectors[0] if len(vectors) == 1 else shuffled(vectors, range(len(vectors) * lanes_of(vectors[0])))


def interleaved(vectors: Sequence[Any]) -> list[Any]:
    """x0 x1 x2 ..., y0 y1 y2 ... -> x0 y0 x1 y1 ..."""
    lanes, count = lanes_of(vectors[0]), len(vectors)
    return [
        shuffled(vectors, [(at % count) * lanes + at // count for at in range(i * lanes, (i + 1) * lanes)])
        for i in range(count)
    ]


def taken_apart(vectors: Sequence[Any]) -> list[Any]:
    """x0 y0 x1 y1 ... -> x0 x1 x2 ..., y0 y1 y2 ..."""
    lanes, count = lanes_of(vectors[0]), len(vectors)
    return [shuffled(vectors, [lane * count + i for lane in range(lanes)]) for i in range(count)]


def shuffled(vectors: Sequence[Any], indices: Sequence[int]) -> Any:
    return tirx.Shuffle(list(vectors), [tirx.const(i, "int32") for i in indices])


def lanes_of(vector: Any) -> int:
    """1 of a scalar."""
    return int(str(vector.ty.dtype).partition("x")[2] or 1)
