"""In a builder process: schedule a workload, compile it, and leave a library that the runner can load."""

from __future__ import annotations

import importlib
import time
from functools import lru_cache
from typing import Any

from subtune.core.kernel import NotApplicable
from subtune.core.measurement import Failure, FailureKind
from subtune.core.record import func_hash
from subtune.core.workload import Workload
from subtune.measure.messages import BuildJob, Library
from subtune.tir.saved import read_workload

_REASON_CHARS = 500


def handle(job: BuildJob) -> Library | Failure:
    begin = time.perf_counter()
    workload = load_workload(job.workload_json, job.num_outputs)
    try:
        kernel = _function(job.schedule)(workload, job.candidate, job.device)
    except MemoryError:
        raise
    except Exception as e:
        return Failure(FailureKind.INVALID, f"{type(e).__name__}: {e}".strip()[-_REASON_CHARS:])
    if isinstance(kernel, NotApplicable):
        return Failure(FailureKind.INVALID, kernel.reason)
    func = kernel.func.with_attr("global_symbol", "main")
    path = job.device.backend.build(func, job.device, job.stem, job.is_optional)
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
    )


@lru_cache(maxsize=64)
def load_workload(text: str, num_outputs: int) -> Workload:
    return read_workload(text, num_outputs)


@lru_cache
def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)
