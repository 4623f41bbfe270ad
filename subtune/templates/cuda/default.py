"""The default schedule on CUDA: dlight's, as every Relax model for a GPU has it. Gains are reported against it."""

from __future__ import annotations

from subtune.build.lower_cuda import default_schedule
from subtune.candidate import Candidate
from subtune.devices.cuda import CUDAModel
from subtune.kernel import Kernel
from subtune.workload import Workload


def schedule(workload: Workload, candidate: Candidate, device: CUDAModel) -> Kernel:
    """Dlight's rules; always applicable, as its fallback takes what is left."""
    import tvm

    mod = default_schedule(tvm.IRModule({"main": workload.func}), device.target())
    return Kernel(mod["main"])
