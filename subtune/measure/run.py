"""In the runner process: one workload is prepared, its candidates are checked and timed."""

from __future__ import annotations

from subtune.backends.base import Bench
from subtune.core.measurement import Comparison, Failure, Timing
from subtune.measure.build import load_workload
from subtune.measure.messages import CompareJob, Prepared, PrepareJob, TimeJob


def handle(job: PrepareJob | TimeJob | CompareJob) -> Prepared | Timing | Comparison | Failure:
    if isinstance(job, PrepareJob):
        _PREPARED.clear()  # its memory is wanted
        workload = load_workload(job.workload_json, job.num_outputs)
        _PREPARED.append(job.device.backend.bench(workload, job.device, job))
        return Prepared(_PREPARED[0].default_s)
    (bench,) = _PREPARED
    return bench.time(job) if isinstance(job, TimeJob) else bench.compare(job)


_PREPARED: list[Bench] = []
"""The workload this process is measuring: it stays between jobs, as the process itself does."""
