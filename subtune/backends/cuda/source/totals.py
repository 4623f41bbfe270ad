"""Partial results of the threads that share a line become its total, known to every one of them.

along a line:  partials of a thread, then `shfl.xor` within a warp, then one value per warp in shared memory
across lines:  every thread's columns in shared memory, summed by each thread for its own columns
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx.op import tvm_warp_shuffle_xor

from subtune.backends.cuda.source.emit import FULL_WARP, Code, const, load

_WARP = 32

Combine = Callable[[Any, Any], Any]


def totals_along(
    code: Code, sums: Any, dtype: str, points: int, partials: int, threads: int, group: tuple[Any, Any, int],
    combine: Combine,
) -> Any:  # fmt: skip
    """Totals of `points` lines; `sums` has `partials` of each; `threads` (a power of two) neighbours share a line.

    `group` is the thread's number among its neighbours, its group's number, and how many groups a block has.
    """
    thread, number, groups = group
    total = code.local(dtype, points, "total")
    for point in range(points):
        value = load(sums, const(point * partials))
        for i in range(1, partials):
            value = combine(value, load(sums, const(point * partials + i)))
        code.store(total, const(point), value)
    offset = min(threads, _WARP) // 2
    while offset:
        for point in range(points):
            mine = load(total, const(point))
            mask = tirx.const(FULL_WARP, "uint32")
            other = tvm_warp_shuffle_xor(mask, mine, offset, _WARP, _WARP)
            code.store(total, const(point), combine(mine, other))
        offset //= 2
    warps = threads // _WARP
    if warps < 2:
        return total
    shared = code.shared(dtype, groups * points * warps, "totals")
    base = number * (points * warps)
    with code.when(tirx.EQ(thread % _WARP, const(0))):
        for point in range(points):
            code.store(shared, base + point * warps + tirx.floordiv(thread, const(_WARP)), load(total, const(point)))
    code.sync()
    for point in range(points):
        code.store(total, const(point), load(shared, base + const(point * warps)))
        with code.unrolled(warps - 1) as w:
            other = load(shared, base + point * warps + w + 1)
            code.store(total, const(point), combine(load(total, const(point)), other))
    return total


def totals_across(
    code: Code, sums: Any, dtype: str, points: int, lanes: int, threads: int, chunk: tuple[Any, Any, int],
    combine: Combine,
) -> Any:  # fmt: skip
    """Totals of `points * lanes` lines of every thread, `threads` of which share them.

    `chunk` is the thread's number among those that share, the number of its columns in the block, and their count.
    """
    if threads == 1:
        return sums
    thread, number, chunks = chunk
    shared = code.shared(dtype, threads * points * chunks * lanes, "totals")
    row = points * chunks * lanes
    total = code.local(dtype, points * lanes, "total")
    for point in range(points):
        with code.unrolled(lanes) as v:
            at = thread * row + (point * chunks + number) * lanes + v
            code.store(shared, at, load(sums, const(point * lanes) + v))
    code.sync()
    for point in range(points):
        base = (point * chunks + number) * lanes
        with code.unrolled(lanes) as v:
            code.store(total, const(point * lanes) + v, load(shared, base + v))
        with code.unrolled(threads - 1) as s, code.unrolled(lanes) as v:
            mine, other = load(total, const(point * lanes) + v), load(shared, (s + 1) * row + base + v)
            code.store(total, const(point * lanes) + v, combine(mine, other))
    return total
