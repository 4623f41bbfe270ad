"""Small kernels, each of which does one thing as often as it can: what they take says what this machine does.

All sum into accumulators that stay in registers. LLVM keeps the order of a float32's sums, so the loops are as written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from subtune.backends.cpu.device import CPUModel

Call = Callable[[], object]


def multiply_adds(device: CPUModel, vectors: int, rounds: int, depth: int) -> Call:
    """`out[t, v] += a[k] * b[v]` on every thread, `rounds` times for all `depth` k; `v` are `vectors` registers."""
    width = vectors * device.lanes()
    a, b = te.placeholder((depth,), "float32", "a"), te.placeholder((width,), "float32", "b")
    again, k = te.reduce_axis((0, rounds), "again"), te.reduce_axis((0, depth), "k")
    out = te.compute((device.threads, width), lambda t, v: te.sum(a[k] * b[v], [again, k]), "out")
    return _call(_in_registers([a, b, out], device), [a, b, out], device, 0.0)


def reads(device: CPUModel, rounds: int, rows: int, tiles: int, vectors: int, *, rows_first: bool = True) -> Call:
    """On every thread: `rounds` times, `vectors` registers of each of `tiles` tiles in each of `rows` rows.

    In the order in which they lie, or not `rows_first`: down all rows of a tile, then of the next.
    """
    width = vectors * device.lanes()
    a = te.placeholder((device.threads, rows, tiles, width), "float32", "a")
    again, row = te.reduce_axis((0, rounds), "again"), te.reduce_axis((0, rows), "row")
    tile = te.reduce_axis((0, tiles), "tile")
    order = [again, row, tile] if rows_first else [again, tile, row]
    out = te.compute((device.threads, width), lambda t, v: te.sum(a[t, row, tile, v], order), "out")
    return _call(_in_registers([a, out], device), [a, out], device, 1.0)


def increments(device: CPUModel, is_parallel: bool) -> Call:
    """`out = a + 1`, one vector for each thread: shared out, or all by the calling one."""
    a = te.placeholder((device.threads, device.lanes()), "float32", "a")
    out = te.compute(a.shape, lambda i, j: a[i, j] + 1.0, "out")
    sch = Schedule(te.create_prim_func([a, out]))
    piece, lane = sch.get_loops(sch.get_sblock("out"))
    sch.vectorize(lane)
    if is_parallel:
        sch.parallel(piece)
    return _call(sch, [a, out], device, 1.0)


def _in_registers(tensors: Sequence[te.Tensor], device: CPUModel) -> Schedule:
    """The loops of `out[thread, column] += ...` with `column` innermost, as registers."""
    sch = Schedule(te.create_prim_func(list(tensors)))
    block = sch.get_sblock("out")
    local = sch.cache_write(block, 0, "local")
    thread, column, *reduced = sch.get_loops(block)
    vector, lane = sch.split(column, [None, device.lanes()])
    sch.reorder(thread, *reduced, vector, lane)
    sch.reverse_compute_at(local, thread)
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.parallel(thread)
    sch.decompose_reduction(block, reduced[0])
    sch.vectorize(sch.split(sch.get_loops(local)[-1], [None, device.lanes()])[1])
    return sch


def _call(sch: Schedule, tensors: Sequence[te.Tensor], device: CPUModel, value: float) -> Call:
    kernel = tvm.compile(sch.mod["main"], target=device.target())["main"]
    shapes = [tuple(map(int, tensor.shape)) for tensor in tensors]
    args = [tvm.runtime.tensor(np.full(shape, value, "float32")) for shape in shapes]
    return lambda: kernel(*args)
