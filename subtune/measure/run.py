"""In the runner process: one workload is prepared, its candidates are checked and timed."""

from __future__ import annotations

from typing import Any

from subtune import runtime
from subtune.backends.cuda.device import CUDAModel
from subtune.measure.build import load_workload
from subtune.measure.messages import CompareJob, Prepared, PrepareJob, TimeJob
from subtune.runtime import affinity


def handle(job: PrepareJob | TimeJob | CompareJob) -> Any:
    if isinstance(job, PrepareJob):
        _PREPARED.clear()  # its memory is wanted
        _PREPARED.append(_bench(job))
        return Prepared(_PREPARED[0].default_s)
    (bench,) = _PREPARED
    return bench.time(job) if isinstance(job, TimeJob) else bench.compare(job)


def _bench(job: PrepareJob) -> Any:
    workload, device = load_workload(job.workload_json, job.num_outputs), job.device
    if isinstance(device, CUDAModel):
        from subtune.backends.cuda.timing.bench import CudaBench

        return CudaBench(workload, device, job.default, job.reference, job.mode)
    from subtune.backends.cpu.timing.bench import Bench

    runtime.use_threads(device.threads)
    affinity.bind_caller()
    return Bench(workload, device, job.default)


_PREPARED: list[Any] = []
"""The workload this process is measuring: it stays between jobs, as the process itself does."""
