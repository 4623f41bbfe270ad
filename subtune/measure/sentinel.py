"""Is the machine as fast as it was? A fixed kernel tells, and timing waits for a while when it is not.

On a shared machine the cores are at times hyper-threads of one, or busy with someone else's work, for a second or
more: a candidate that is looked at meanwhile seems half as fast as the one before it. The kernel here does nothing but
fused multiply-adds on registers, on all threads, so what slows it down is not in this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from subtune.device import CPUModel

_SLOWER = 1.2
"""Above this the machine counts as disturbed; its frequency moves by less."""
_SAMPLES, _CALLS = 3, 8
_PAUSE_S = 0.02
_PATIENCE_S = 1.0
"""For one job, and for all jobs of a workload together twice that: then the machine is taken as it is."""


class Sentinel:
    def __init__(self, device: CPUModel) -> None:
        self._call = _kernel(device)
        self._best_s = min(self._sample() for _ in range(20))
        self._left_s = 0.0
        self.begin_workload()

    def begin_workload(self) -> None:
        self._left_s = 2 * _PATIENCE_S

    def undisturbed(self, look: Callable[[], Any]) -> Any:
        """What `look` returns when the machine was itself before it and after it, as far as patience reaches."""
        end = time.perf_counter() + min(_PATIENCE_S, self._left_s)
        while True:
            begin = time.perf_counter()
            while self.slowdown() > _SLOWER and time.perf_counter() < end:
                time.sleep(_PAUSE_S)
            waited = time.perf_counter() - begin
            found = look()
            is_disturbed = self.slowdown() > _SLOWER
            self._left_s -= waited if not is_disturbed else time.perf_counter() - begin
            if not is_disturbed or time.perf_counter() >= end:
                return found

    def slowdown(self) -> float:
        """The kernel's time now over its best, 1.0 or a little more when nothing disturbs."""
        now_s = min(self._sample() for _ in range(_SAMPLES))
        self._best_s = min(self._best_s, now_s)
        return now_s / self._best_s

    def _sample(self) -> float:
        begin = time.perf_counter()
        for _ in range(_CALLS):
            self._call()
        return (time.perf_counter() - begin) / _CALLS


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
