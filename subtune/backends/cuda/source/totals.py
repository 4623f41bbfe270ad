"""Partial results of the threads that share a line become its total, known to every one of them.

along a line:  partials of a thread, then `shfl.xor` within a warp, then one value per warp in shared memory
across lines:  every thread's columns in shared memory, summed by each thread for its own columns

A total is of one value or of several: of each, there are registers of its type.

Blocks of a cluster that share a line read one another's totals where they lie, in shared memory (Hopper and newer).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.tirx.op import tvm_warp_shuffle_xor

from subtune.backends.cuda.source.calls import address, called
from subtune.backends.cuda.source.emit import FULL_WARP, Code, const, load

_WARP = 32
CLUSTER = r"""
#ifndef SUBTUNE_CLUSTER
#define SUBTUNE_CLUSTER
namespace subtune {
// What lies at `own` in the shared memory of block `block` of the cluster.
template <class T> __device__ __forceinline__ T of_block(const T* own, unsigned block) {
  unsigned at = (unsigned)__cvta_generic_to_shared(own), there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
  if constexpr (sizeof(T) == 4) {
    union { unsigned word; T value; } it;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(it.word) : "r"(there) : "memory");
    return it.value;
  } else {
    union { unsigned long long word; T value; } it;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(it.word) : "r"(there) : "memory");
    return it.value;
  }
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
}  // namespace subtune
#endif
"""


class Combines(Protocol):
    """How totals are made: see `subtune.backends.cuda.source.combiner.Combiner`."""

    @property
    def dtypes(self) -> tuple[str, ...]: ...

    def add(self, code: Code, registers: Sequence[Any], index: Any, values: Sequence[Any]) -> None: ...


def totals_along(
    code: Code, sums: Sequence[Any], points: int, partials: int, threads: int, group: tuple[Any, Any, int],
    combiner: Combines,
) -> list[Any]:  # fmt: skip
    """Totals of `points` lines; `sums` has `partials` of each; `threads` (a power of two) neighbours share a line.

    `group` is the thread's number among its neighbours, its group's number, and how many groups a block has.
    """
    thread, number, groups = group
    total = [code.local(dtype, points, "total") for dtype in combiner.dtypes]
    for point in range(points):
        _copy(code, total, const(point), sums, const(point * partials))
        for i in range(1, partials):
            combiner.add(code, total, const(point), [load(own, const(point * partials + i)) for own in sums])
    other = [code.local(dtype, points, "other") for dtype in combiner.dtypes]
    offset = min(threads, _WARP) // 2
    mask = tirx.const(FULL_WARP, "uint32")
    while offset:
        for point in range(points):
            for mine, theirs in zip(total, other, strict=True):
                value = tvm_warp_shuffle_xor(mask, load(mine, const(point)), offset, _WARP, _WARP)
                code.store(theirs, const(point), value)
            combiner.add(code, total, const(point), [load(theirs, const(point)) for theirs in other])
        offset //= 2
    warps = threads // _WARP
    if warps < 2:
        return total
    shared = [code.shared(dtype, groups * points * warps, "totals") for dtype in combiner.dtypes]
    base = number * (points * warps)
    with code.when(tirx.EQ(thread % _WARP, const(0))):
        for point in range(points):
            at = base + point * warps + tirx.floordiv(thread, const(_WARP))
            _copy(code, shared, at, total, const(point))
    code.sync()
    for point in range(points):
        _copy(code, total, const(point), shared, base + const(point * warps))
        with code.unrolled(warps - 1) as w:
            combiner.add(code, total, const(point), [load(theirs, base + point * warps + w + 1) for theirs in shared])
    return total


def totals_across(
    code: Code, sums: Sequence[Any], points: int, lanes: int, threads: int, chunk: tuple[Any, Any, int],
    combiner: Combines,
) -> list[Any]:  # fmt: skip
    """Totals of `points * lanes` lines of every thread, `threads` of which share them.

    `chunk` is the thread's number among those that share, the number of its columns in the block, and their count.
    """
    if threads == 1:
        return list(sums)
    thread, number, chunks = chunk
    shared = [code.shared(dtype, threads * points * chunks * lanes, "totals") for dtype in combiner.dtypes]
    row = points * chunks * lanes
    total = [code.local(dtype, points * lanes, "total") for dtype in combiner.dtypes]
    for point in range(points):
        with code.unrolled(lanes) as v:
            at = thread * row + (point * chunks + number) * lanes + v
            _copy(code, shared, at, sums, const(point * lanes) + v)
    code.sync()
    for point in range(points):
        base = (point * chunks + number) * lanes
        with code.unrolled(lanes) as v:
            _copy(code, total, const(point * lanes) + v, shared, base + v)
        with code.unrolled(threads - 1) as s, code.unrolled(lanes) as v:
            theirs = [load(own, (s + 1) * row + base + v) for own in shared]
            combiner.add(code, total, const(point * lanes) + v, theirs)
    return total


def totals_of_cluster(
    code: Code, totals: Sequence[Any], count: int, chunk: tuple[Any, Any, int], blocks: int, combiner: Combines
) -> list[Any]:
    """Totals of the `count` lines of a thread in all `blocks` of a cluster; `totals` are those of its block.

    `chunk` as in `totals_across`. No block may end before all have read: `sync_cluster` comes last.
    """
    thread, number, chunks = chunk
    first, row = number * count, chunks * count
    mine = [code.shared(dtype, row, "mine") for dtype in combiner.dtypes]
    theirs = [code.shared(dtype, blocks * row, "theirs") for dtype in combiner.dtypes]
    with code.when(tirx.EQ(thread, const(0))):
        for i in range(count):
            _copy(code, mine, first + i, totals, const(i))
    sync_cluster(code)
    with code.when(tirx.LT(thread, const(blocks))):
        for i in range(count):
            for own, all_of_them, dtype in zip(mine, theirs, combiner.dtypes, strict=True):
                value = cuda_func_call(
                    "subtune::of_block", address(own, first + i), thread.astype("int32"), source_code=CLUSTER,
                    return_type=dtype,
                )  # fmt: skip
                code.store(all_of_them, thread * row + first + i, value)
    code.sync()
    total = [code.local(dtype, count, "total") for dtype in combiner.dtypes]
    for i in range(count):
        _copy(code, total, const(i), theirs, first + i)
        with code.unrolled(blocks - 1) as b:
            combiner.add(code, total, const(i), [load(one, (b + 1) * row + first + i) for one in theirs])
    return total


def sync_cluster(code: Code) -> None:
    """All threads of the cluster's blocks are here, and see what was written."""
    code.emit(called("subtune::sync_cluster", [], CLUSTER))


def _copy(code: Code, to: Sequence[Any], index: Any, source: Sequence[Any], at: Any) -> None:
    for one, other in zip(to, source, strict=True):
        code.store(one, index, load(other, at))
