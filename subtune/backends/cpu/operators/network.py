"""A buffer of whole numbers sorted where it lies: Batcher's bitonic network on vectors.

    for blocks of 2, 4, ... elements:  the second half turned round is compared with the first;  halves of halves follow

Comparisons further apart than a vector are between vectors, nearer ones are shuffles of one. All loops are fixed, and
no branch depends on a value. Source: Batcher, Sorting Networks and Their Applications (1968).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from subtune.tir.shuffle import shuffled
from subtune.tir.statements import integer, sequence, serial


def sort_in_place(buffer: Any, size: int, lanes: int) -> Any:
    """The statement that sorts the first `size` elements, the smallest first; both are powers of two."""
    lanes = min(lanes, size)
    if lanes < 2:
        return tirx.Evaluate(tirx.const(0, "int32"))
    steps = [flip for block in _powers(2, lanes) for flip in (block - 1, *_distances(block // 4))]
    parts = [_inside(buffer, size, lanes, steps)]
    for block in _powers(2 * lanes, size):
        parts.append(_between(buffer, size, block, lanes, is_turned=True))
        parts += _halved(buffer, size, block // 4, lanes)
    return sequence(*parts)


def keep_least(buffer: Any, other: Any, size: int, lanes: int) -> Any:
    """The statement after which `buffer` holds the least `size` elements of both, sorted as both are before."""
    lanes = min(lanes, size)

    def pair(number: Any) -> Any:
        at = number * integer(lanes)
        (a, one), (b, two) = (_bound(_vector(which, begin, lanes))
                              for which, begin in ((buffer, at), (other, integer(size - lanes) - at)))  # fmt: skip
        b, turned = _bound(shuffled((b,), list(range(lanes - 1, -1, -1))))
        return sequence(*one, *two, *turned, _put(buffer, tirx.Min(a, b), at, lanes))

    return sequence(serial(size // lanes, pair), *_halved(buffer, size, size // 2, lanes))


def comparisons(size: int) -> int:
    """Of elements, that sort `size` of them."""
    steps = size.bit_length() - 1
    return size * steps * (steps + 1) // 4


def comparisons_to_keep(size: int) -> int:
    """Of elements, that `keep_least` takes."""
    return size + size * (size.bit_length() - 1) // 2


def _halved(buffer: Any, size: int, distance: int, lanes: int) -> list[Any]:
    """What sorts blocks of twice `distance` elements that rise and then fall: halves of halves are compared."""
    far = [_between(buffer, size, 2 * one, lanes, is_turned=False) for one in _distances(distance) if one >= lanes]
    return [*far, _inside(buffer, size, lanes, _distances(min(distance, lanes // 2)))]


def _powers(low: int, high: int) -> list[int]:
    return [1 << n for n in range(low.bit_length() - 1, high.bit_length())]


def _distances(first: int) -> list[int]:
    """`first`, its half, and so on down to 1."""
    return [] if first == 0 else _powers(1, first)[::-1]


def _inside(buffer: Any, size: int, lanes: int, steps: Sequence[int]) -> Any:
    """Every vector's lanes i and i ^ step compared, for each step."""

    def body(number: Any) -> Any:
        at = number * integer(lanes)
        vector, stmts = _bound(_vector(buffer, at, lanes))
        for step in steps:
            other, more = _bound(shuffled((vector,), [i ^ step for i in range(lanes)]))
            low, high = (_bound(bound(vector, other)) for bound in (tirx.Min, tirx.Max))
            chosen = [i if i < i ^ step else lanes + i for i in range(lanes)]
            vector, last = _bound(shuffled((low[0], high[0]), chosen))
            stmts += [*more, *low[1], *high[1], *last]
        return sequence(*stmts, _put(buffer, vector, at, lanes))

    return serial(size // lanes, body)


def _between(buffer: Any, size: int, block: int, lanes: int, is_turned: bool) -> Any:
    """Vectors of the first half of every block compared with those of the second, or with them turned round."""
    half, turned = block // 2, list(range(lanes - 1, -1, -1))

    def pair(start: Any, number: Any) -> Any:
        first = start + number * integer(lanes)
        second = first + integer(half)
        if is_turned:
            second = start + integer(block - lanes) - number * integer(lanes)
        (a, one), (b, two) = (_bound(_vector(buffer, at, lanes)) for at in (first, second))
        stmts = [*one, *two]
        if is_turned:
            b, more = _bound(shuffled((b,), turned))
            stmts += more
        (low, one), (high, two) = _bound(tirx.Min(a, b)), _bound(tirx.Max(a, b))
        high = shuffled((high,), turned) if is_turned else high
        return sequence(*stmts, *one, *two, _put(buffer, low, first, lanes), _put(buffer, high, second, lanes))

    return serial(size // block, lambda b: serial(half // lanes, lambda i: pair(b * integer(block), i)))


def _bound(value: Any) -> tuple[Any, list[Any]]:
    var = tirx.Var("v", str(value.ty.dtype))
    return var, [tirx.Bind(var, value)]


def _vector(buffer: Any, at: Any, lanes: int) -> Any:
    return tirx.BufferLoad(buffer, [tirx.Ramp(at, integer(1), lanes)])


def _put(buffer: Any, value: Any, at: Any, lanes: int) -> Any:
    return tirx.BufferStore(buffer, value, [tirx.Ramp(at, integer(1), lanes)])
