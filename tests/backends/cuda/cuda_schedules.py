"""`subtune.backends.schedule` for workers: y = 2 x + 1 on a GPU, right, wrong or ruinous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te
from tvm.s_tir import Schedule

from subtune import backends
from subtune.backends.cuda.device import CUDAModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload

SIZE = 1 << 20

BODIES: dict[str, Callable[[Any, Any], Any]] = {
    "right": lambda x, i: x[i] * 2.0 + 1.0,
    "wrong": lambda x, i: x[i] * 2.0 + te.if_then_else(i == 777, 1.5, 1.0),
    "illegal": lambda x, i: x[i * 1999 + (1 << 30)],
}


def workload(name: str = "right") -> Workload:
    x = te.placeholder((SIZE,), "float32", "x")
    y = te.compute((SIZE,), lambda i: BODIES[name](x, i), "y")
    return Workload.of(te.create_prim_func([x, y]), 1)


def schedule(given: Workload, candidate: Candidate, device: CUDAModel) -> Kernel | NotApplicable:
    if candidate.family not in BODIES:
        return backends.schedule(given, candidate, device)
    sch = Schedule(workload(candidate.family).func)
    block, thread = sch.split(sch.get_loops(sch.get_sblock("y"))[0], [None, 256])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return Kernel(sch.mod["main"])
