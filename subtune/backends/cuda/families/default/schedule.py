"""The default schedule on CUDA: dlight's, as every Relax model for a GPU has it. Gains are reported against it."""

from __future__ import annotations

from subtune.backends.base import NoKnobs, Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.core.kernel import Kernel


def schedule(problem: Problem[CUDAModel], knobs: NoKnobs) -> Kernel:
    """Dlight's rules; always applicable, as its fallback takes what is left."""
    import tvm

    mod = default_schedule(tvm.IRModule({"main": problem.workload.func}), problem.device.target())
    return Kernel(mod["main"])
