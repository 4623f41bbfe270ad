"""A workload in float64, for checking: what its kernels compute but for the rounding. Never a candidate to win."""

from __future__ import annotations

import re

from subtune.build.lower_cuda import default_schedule
from subtune.candidate import Candidate
from subtune.devices.cuda import CUDAModel
from subtune.kernel import Kernel, NotApplicable
from subtune.workload import Workload

CANDIDATE = Candidate("cuda.reference")
_FLOATS = re.compile(r"\b(b?float)(16|32)\b(?!_)")


def schedule(workload: Workload, candidate: Candidate, device: CUDAModel) -> Kernel | NotApplicable:
    """Every float16, bfloat16 and float32 of the workload as float64, arguments included, with dlight's schedule."""
    import tvm

    text = workload.func.script()
    if "reinterpret" in text or "float8" in text:
        return NotApplicable("it looks at the bits of its floating-point numbers")
    wide = _FLOATS.sub("float64", text)
    func = tvm.script.from_source(wide, check_well_formed=False).with_attr("global_symbol", "main")
    mod = default_schedule(tvm.IRModule({"main": func}), device.target())
    return Kernel(mod["main"])
