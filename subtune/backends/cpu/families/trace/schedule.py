"""Replays a stored trace: how a schedule that was found elsewhere, by MetaSchedule for one, becomes a candidate."""

from __future__ import annotations

import json

from subtune.backends.cpu.device import CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    """`candidate["json"]` is `Trace.as_json()` as text."""
    from tvm import IRModule
    from tvm.s_tir import Schedule, Trace

    sch = Schedule(IRModule({"main": workload.func}))
    try:
        Trace.apply_json_to_schedule(json.loads(str(candidate["json"])), sch)
    except Exception as e:  # the trace may come from any TVM, for any function
        lines = str(e).strip().splitlines()
        return NotApplicable(f"the trace does not fit: {lines[-1] if lines else type(e).__name__}")
    func = sch.mod["main"]
    before = [(tuple(p.shape), str(p.dtype)) for p in workload.func.params]
    if [(tuple(p.shape), str(p.dtype)) for p in func.params] != before:
        return NotApplicable("the trace changes the layout of a parameter, which its caller would not know")
    return Kernel(func, trace=sch.trace)
