"""A workload in float64, for checking: what its kernels compute but for the rounding. Never a candidate to win."""

from __future__ import annotations

import re
from typing import Any

from subtune.backends.base import NoKnobs, Problem
from subtune.backends.cuda.building.fast_import import cheap_stack
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.default_schedule import beginning, default_schedule
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload

CANDIDATE = Candidate("cuda.reference")
_UNTYPED = re.compile(r'(T\.sblock_alloc_buffer\(\((?:[^()]|\([^()]*\))*\))(?!, ")')
"""A buffer of float32 is printed without its type."""
_NARROW = ("float16", "bfloat16", "float32")
_FLOATS = re.compile(r"\b(b?float)(16|32)\b(?!_)")


def schedule(problem: Problem[CUDAModel], knobs: NoKnobs) -> Kernel | NotApplicable:
    """Every float16, bfloat16 and float32 of the workload as float64, arguments included, with dlight's schedule."""
    import tvm

    func = in_float64(problem.workload)
    if isinstance(func, NotApplicable):
        return func
    mod = default_schedule(tvm.IRModule({"main": func}), problem.device.target())
    return Kernel(mod["main"])


def in_float64(workload: Workload) -> Any:
    """The workload's PrimFunc, unscheduled, or NotApplicable."""
    import tvm

    text = workload.func.script()
    if "reinterpret" in text or "float8" in text:
        return NotApplicable("it looks at the bits of its floating-point numbers")
    wide = _FLOATS.sub("float64", _UNTYPED.sub(r'\1, "float64"', text))
    with cheap_stack():
        func = tvm.script.from_source(wide, check_well_formed=False).with_attr("global_symbol", "main")
    return beginning(func, _widest)


def _widest(value: float, dtype: str) -> Any:
    """Where a maximum or a minimum begins: at the end of its new type, by which TVM's reductions across threads know
    it.

    Without those, an attention's exponentials are computed again for every column of its result: the reference then
    takes seconds, which is all of a short budget.
    """
    from tvm import tirx

    if value in {tirx.min_value(narrow).value for narrow in _NARROW}:
        return tirx.min_value(dtype)
    return tirx.max_value(dtype) if value in {tirx.max_value(narrow).value for narrow in _NARROW} else None
