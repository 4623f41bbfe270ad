"""Is the machine as fast as it was? A fixed kernel tells, and timing waits for a while when it is not.

On a shared machine the cores are at times hyper-threads of one, or busy with someone else's work, for a second or
more: a candidate that is looked at meanwhile seems half as fast as the one before it. The kernel here does nothing but
fused multiply-adds on registers, on all threads, so what slows it down is not in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from subtune.backends.cpu.device import CPUModel
from subtune.measure.sentinel_base import Patience

_CALLS = 8


class Sentinel(Patience):
    def __init__(self, device: CPUModel) -> None:
        call = _kernel(device)

        def sample() -> float:
            begin = time.perf_counter()
            for _ in range(_CALLS):
                call()
            return (time.perf_counter() - begin) / _CALLS

        super().__init__(sample)


def _kernel(device: CPUModel) -> Callable[[], object]:
    """About 20 microseconds of multiply-adds on every thread: `out[t, v] += a[k] * b[v]`, `v` in registers."""
    lanes = device.lanes()
    width = lanes * (2 * device.fma_latency)
    a, b = te.placeholder((256,), "float32", "a"), te.placeholder((width,), "float32", "b")
    rounds, k = te.reduce_axis((0, 40), "rounds"), te.reduce_axis((0, 256), "k")
    out = te.compute((device.threads, width), lambda t, v: te.sum(a[k] * b[v], [rounds, k]), "out")
    sch = Schedule(te.create_prim_func([a, b, out]))
    block = sch.get_sblock("out")
    local = sch.cache_write(block, 0, "local")
    thread, column, again, inner = sch.get_loops(block)
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(thread, again, inner, vector, lane)
    sch.reverse_compute_at(local, thread)
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.parallel(thread)
    sch.decompose_reduction(block, again)
    sch.vectorize(sch.split(sch.get_loops(local)[-1], [None, lanes])[1])
    call = tvm.compile(sch.mod["main"], target=device.target())["main"]
    shapes = ((256,), (width,), (device.threads, width))
    args = [tvm.runtime.tensor(np.zeros(shape, "float32")) for shape in shapes]
    return lambda: call(*args)
