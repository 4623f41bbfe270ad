"""Replays a stored trace: how a schedule that was found elsewhere, by MetaSchedule for one, becomes a candidate."""

from __future__ import annotations

import json
from dataclasses import dataclass

from subtune.backends.base import Family
from subtune.backends.cpu.family import LIBM, CPUProblem
from subtune.core.kernel import Kernel, NotApplicable


@dataclass(frozen=True, slots=True)
class Knobs:
    """`Trace.as_json()` as text."""

    json: str


def schedule(problem: CPUProblem, knobs: Knobs) -> Kernel | NotApplicable:
    from tvm import IRModule
    from tvm.s_tir import Schedule, Trace

    sch = Schedule(IRModule({"main": problem.workload.func}))
    try:
        Trace.apply_json_to_schedule(json.loads(knobs.json), sch)
    except Exception as e:  # the trace may come from any TVM, for any function
        lines = str(e).strip().splitlines()
        return NotApplicable(f"the trace does not fit: {lines[-1] if lines else type(e).__name__}")
    func = sch.mod["main"]
    before = [(tuple(p.shape), str(p.dtype)) for p in problem.workload.func.params]
    if [(tuple(p.shape), str(p.dtype)) for p in func.params] != before:
        return NotApplicable("the trace changes the layout of a parameter, which its caller would not know")
    return Kernel(func, trace=sch.trace)


FAMILY = Family("trace", 1, Knobs, lambda problem: "a trace is found elsewhere", lambda problem: (), schedule, (LIBM,))
