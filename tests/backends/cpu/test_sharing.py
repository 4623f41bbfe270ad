"""Threads that take over pieces of one another's share of a loop: every iteration once, whoever is slow."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from subtune.backends.cpu.balance import imbalance
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.runtime import use_threads


def counted(rows: int, columns: int) -> tirx.PrimFunc:
    """Two parallel loops, the second over rows that another thread has written: each adds one to what was there."""
    x = te.placeholder((rows, columns), "float32", "x")
    more = te.compute((rows, columns), lambda i, j: x[i, j] + 1, "more")
    turned = te.compute((rows, columns), lambda i, j: more[rows - 1 - i, j] + 1, "turned")
    sch = Schedule(te.create_prim_func([x, turned]))
    for name in ("more", "turned"):
        sch.parallel(sch.get_loops(sch.get_sblock(name))[0])
    return sch.mod["main"].with_attr("global_symbol", "main")


@pytest.mark.parametrize("threads", [2, 3, 11])
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 12, 33, 64, 101, 1000])
def test_every_iteration_is_run_once(rows: int, threads: int, device: CPUModel) -> None:
    """However many threads the code is for, and the pool has."""
    target = replace(device, threads=threads).target()
    call = tvm.compile(counted(rows, 24), target=target, tir_pipeline=PIPELINE)["main"]
    use_threads(2)
    x = np.arange(rows * 24, dtype=np.float32).reshape(rows, 24)
    for _ in range(20):
        out = tvm.runtime.tensor(np.full_like(x, np.nan))
        call(tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), x[::-1] + 2)


def test_a_loop_that_runs_several_times_is_not_shared(device: CPUModel) -> None:
    """Its counters would have to be set back between."""
    sch = Schedule(_deeper(8, 40))
    call = tvm.compile(sch.mod["main"], target=device.target(), tir_pipeline=PIPELINE)["main"]
    use_threads(2)
    x = np.arange(8 * 40, dtype=np.float32).reshape(8, 40)
    for _ in range(20):
        out = tvm.runtime.tensor(np.full_like(x, np.nan))
        call(tvm.runtime.tensor(x), out)
        np.testing.assert_array_equal(out.numpy(), x * 2)


def _deeper(rows: int, columns: int) -> tirx.PrimFunc:
    x = te.placeholder((rows, columns), "float32", "x")
    sch = Schedule(te.create_prim_func([x, te.compute((rows, columns), lambda i, j: x[i, j] * 2, "doubled")]))
    sch.parallel(sch.get_loops(sch.get_sblock("doubled"))[1])
    return sch.mod["main"].with_attr("global_symbol", "main")


def test_the_model_prefers_pieces_that_can_be_taken_over(device: CPUModel) -> None:
    device = replace(device, threads=2)
    waits = [imbalance(grains, device) for grains in (2, 3, 4, 8, 64, 1000)]
    assert waits[1] == max(waits), "three pieces keep one of two threads idle for a piece"
    assert waits[0] > waits[4] > waits[5] > 1.0
    assert imbalance(7, replace(device, threads=1)) == 1.0
