"""In a builder process: schedule a workload, and compile it into a library that the runner can load."""

from __future__ import annotations

import hashlib
import importlib
import pickle
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.measurement import Failure, FailureKind
from subtune.core.record import func_hash
from subtune.core.workload import Workload
from subtune.measure.messages import BuildJob, Library, ScheduleJob
from subtune.tir.saved import read_workload

_REASON_CHARS = 500


def handle(job: BuildJob | ScheduleJob) -> Library | Kernel | Failure:
    begin = time.perf_counter()
    kernel = _kept(job) if job.kept else _scheduled(job)
    if isinstance(kernel, Failure) or isinstance(job, ScheduleJob):
        return kernel
    func = kernel.func.with_attr("global_symbol", "main")
    build = job.device.backend.build_to_send if job.is_remote else job.device.backend.build
    path = build(func, job.device, job.stem, job.is_optional)
    if isinstance(path, Failure):
        return path
    return Library(
        path,
        func_hash(func),
        kernel.packings,
        time.perf_counter() - begin,
        kernel.granules,
        kernel.knows_extents,
        kernel.iterations,
        kernel.least,
        kernel.most,
    )


def _kept(job: BuildJob | ScheduleJob) -> Any:
    """The kernel as it was scheduled before, or as it is kept now."""
    text = "\n".join((job.workload_json, str(job.candidate), job.schedule, job.device.fingerprint()))
    path = Path(job.kept) / hashlib.sha256(text.encode()).hexdigest()
    if path.exists():
        return pickle.loads(path.read_bytes())
    kernel = _scheduled(job)
    if isinstance(kernel, Kernel):
        begun = path.with_suffix(".begun")
        begun.write_bytes(pickle.dumps(kernel))
        begun.replace(path)
    return kernel


def _scheduled(job: BuildJob | ScheduleJob) -> Any:
    """The kernel, or a Failure."""
    workload = load_workload(job.workload_json, job.num_outputs)
    try:
        kernel = _function(job.schedule)(workload, job.candidate, job.device)
    except MemoryError:
        raise
    except Exception as e:
        return Failure(FailureKind.INVALID, f"{type(e).__name__}: {e}".strip()[-_REASON_CHARS:])
    return Failure(FailureKind.INVALID, kernel.reason) if isinstance(kernel, NotApplicable) else kernel


@lru_cache(maxsize=64)
def load_workload(text: str, num_outputs: int) -> Workload:
    return read_workload(text, num_outputs)


@lru_cache
def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
