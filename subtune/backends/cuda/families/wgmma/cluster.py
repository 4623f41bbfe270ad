"""Blocks of a cluster on Hopper: slots of the ring that several wait for, and sums that several have parts of.

Shared memory of a block can be read by the others of its cluster: parts of a sum over k are added without a detour
through global memory, each block adding (and storing) its share of the tile's columns.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.script import tirx as T

_VECTOR = 4  # sums that a thread moves at once


def arrive_at_cluster() -> None:
    """This thread is here; what it wrote is seen by those that wait for the cluster."""
    T.evaluate(T.ptx.barrier.cluster.arrive.release())


def wait_for_cluster() -> None:
    """Every thread of the cluster has arrived."""
    T.evaluate(T.ptx.barrier.cluster.wait.acquire())


def arrive_everywhere(barrier: Any, blocks: int, lane: Any) -> None:
    """One arrival at `barrier` of each of the cluster's blocks, by the first threads of a warpgroup."""
    with T.If(lane < blocks), T.Then():
        there = T.alloc_local((1,), "uint32")
        address = T.cuda.cvta_generic_to_shared(barrier)
        T.evaluate(T.ptx.mapa.shared__cluster.u32(there[0], address, T.cast(lane, "uint32")))
        T.evaluate(T.ptx.mbarrier.arrive.shared__cluster.b64(there[0]))


def part_of_sums(sums: Any, ring: Any, rows: int, count: int, split: int, rank: Any, thread: Any, threads: int) -> Any:
    """Registers with this block's columns, one of `split` parts, of the sums of all blocks.

    Args:
        sums: `rows` times `count` registers of every thread; of each `count`, `count // split` neighbours are a part.
        ring: shared memory for the sums of all `threads`, in elements of 4 bytes; no longer used by this block.
    """
    share = count // split
    dtype = str(ring.dtype)
    for i in range(0, rows * count, _VECTOR):
        with T.vectorized(_VECTOR) as v:
            T.buffer_store(ring, sums[i + v], [i * threads + thread * _VECTOR + v])
    arrive_at_cluster()
    wait_for_cluster()
    total = T.alloc_local((rows * share,), dtype)
    other = T.alloc_local((_VECTOR,), dtype)
    first = T.Bind(rank * share * threads + thread * _VECTOR)
    for block in range(split):
        theirs = _ring_of(ring, block)
        for i in range(0, rows * share, _VECTOR):
            there = i // share * count + i % share
            target, at = (other, 0) if block else (total, i)
            with T.vectorized(_VECTOR) as v:
                T.buffer_store(target, theirs[first + (there * threads + v)], [at + v])
            if block:
                for e in range(_VECTOR):
                    T.buffer_store(total, _added(total[i + e], other[e]), [i + e])
    arrive_at_cluster()  # the sums of the others have been read
    return total


def _added(a: Any, b: Any) -> Any:
    if str(a.ty.dtype) != "uint32":
        return a + b
    return tirx.reinterpret("uint32", tirx.reinterpret("int32", a) + tirx.reinterpret("int32", b))


def _ring_of(ring: Any, block: int) -> Any:
    """`ring` as block `block` of the cluster has it."""
    pointer = ir.PointerType(ir.PrimType(str(ring.dtype)), "shared")
    mapped = T.alloc_local((1,), "uint64")
    T.evaluate(T.ptx.mapa.u64(mapped[0], ring.ptr_to([0]), T.uint32(block)))
    there = tirx.Var(f"ring_of_{block}", pointer)
    T.Bind(T.reinterpret(pointer, mapped[0]), var=there)
    return T.decl_buffer(ring.shape, str(ring.dtype), data=there, scope="shared")
