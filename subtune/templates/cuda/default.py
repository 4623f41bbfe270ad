"""The default schedule on CUDA: dlight's, as every Relax model for a GPU has it. Gains are reported against it."""

from __future__ import annotations

from subtune.candidate import Candidate
from subtune.cuda import CUDAModel
from subtune.kernel import Kernel
from subtune.workload import Workload


def schedule(workload: Workload, candidate: Candidate, device: CUDAModel) -> Kernel:
    """Dlight's rules in the order that TVM's default pipeline for CUDA has them; the fallback takes what is left."""
    import tvm
    from tvm.s_tir import dlight

    rules = (
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    with device.target():
        mod = dlight.ApplyDefaultSchedule(*rules)(tvm.IRModule({"main": workload.func}))
    return Kernel(mod["main"])
