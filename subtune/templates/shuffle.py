"""Vectors turned, interleaved and taken apart by shuffles of constant indices, which LLVM makes instructions of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx


def turned(rows: Sequence[Any], name: str) -> tuple[list[Any], list[Any]]:
    """Statements that transpose the square matrix of `rows`, and its columns (variables).

    log2(n) rounds; each exchanges blocks between the rows of a pair, with one shuffle of two vectors a row.
    """
    lanes = len(rows)
    assert lanes & (lanes - 1) == 0, f"{lanes} rows are no power of two"
    statements: list[Any] = []
    current = list(rows)
    size = lanes // 2
    while size:
        following = list(current)
        for low in (i for i in range(lanes) if not i & size):
            high = low + size
            for row, indices in (
                (low, [lanes + i - size if i & size else i for i in range(lanes)]),
                (high, [lanes + i if i & size else i + size for i in range(lanes)]),
            ):
                var = tirx.Var(f"{name}{size}_{row}", str(rows[0].ty.dtype))
                statements.append(tirx.Bind(var, shuffled((current[low], current[high]), indices)))
                following[row] = var
        current = following
        size //= 2
    return statements, current


def interleaved(vectors: Sequence[Any]) -> list[Any]:
    """x0 x1 x2 ..., y0 y1 y2 ... -> x0 y0 x1 y1 ..."""
    lanes, count = _lanes(vectors[0]), len(vectors)
    return [
        shuffled(vectors, [(at % count) * lanes + at // count for at in range(i * lanes, (i + 1) * lanes)])
        for i in range(count)
    ]


def taken_apart(vectors: Sequence[Any]) -> list[Any]:
    """x0 y0 x1 y1 ... -> x0 x1 x2 ..., y0 y1 y2 ..."""
    lanes, count = _lanes(vectors[0]), len(vectors)
    return [shuffled(vectors, [lane * count + i for lane in range(lanes)]) for i in range(count)]


def shuffled(vectors: Sequence[Any], indices: Sequence[int]) -> Any:
    return tirx.Shuffle(list(vectors), [tirx.const(i, "int32") for i in indices])


def _lanes(vector: Any) -> int:
    return int(str(vector.ty.dtype).rpartition("x")[2])
