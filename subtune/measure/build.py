"""In a builder process: schedule a workload, compile it, and leave a library that the runner can load.

Linking with `ld` takes 3 ms, through the C compiler's driver 12 ms. Where neither is installed the optimised
LLVM module is written as text and the runner's just-in-time compiler finishes it: nothing but TVM is needed.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import time
from functools import lru_cache
from typing import Any

from subtune.backends.cuda.device import CUDAModel
from subtune.core.kernel import NotApplicable
from subtune.core.measurement import Failure, FailureKind
from subtune.core.record import func_hash
from subtune.core.workload import Workload
from subtune.measure.messages import BuildJob, Library

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
    import tvm

    from subtune.backends.cpu.lowering.pipeline import PIPELINE
    from subtune.backends.host.conversions import without_conversions

    func = kernel.func.with_attr("global_symbol", "main")
    if isinstance(job.device, CUDAModel):
        from subtune.backends.cuda.building import builder as build_cuda

        path, found = build_cuda.build(func, job.device, job.stem)
        if job.is_optional and (reason := build_cuda.complaint(found, job.device)):
            return Failure(FailureKind.INVALID, reason)
        return Library(path, func_hash(func), kernel.packings, time.perf_counter() - begin)
    module = tvm.compile(without_conversions(func), job.device.target(), tir_pipeline=PIPELINE).mod
    path = _write(module, job.stem)
    return Library(path, func_hash(func), kernel.packings, time.perf_counter() - begin)


@lru_cache(maxsize=2)
def load_workload(text: str, num_outputs: int) -> Workload:
    return Workload.from_json(text, num_outputs)


@lru_cache
def _function(reference: str) -> Any:
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _write(module: Any, stem: str) -> str:
    command = linker()
    if not command:
        module.write_to_file(f"{stem}.ll", "ll")
        return f"{stem}.ll"
    module.write_to_file(f"{stem}.o", "o")
    done = subprocess.run([*command, "-o", f"{stem}.so", f"{stem}.o"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} cannot link: {done.stderr.strip()[-_REASON_CHARS:]}")
    return f"{stem}.so"


@lru_cache
def linker() -> tuple[str, ...]:
    """The command that links an object into a shared library; empty when the machine has none."""
    # Symbols of libc and libm are found in the process at load time, so a bare `ld` is enough on Linux.
    names = ("ld", "ld.lld", "cc") if sys.platform == "linux" else ("cc",)
    for name in names:
        if found := shutil.which(name):
            return (found, "-shared") if sys.platform == "linux" else (found, "-shared", "-undefined", "dynamic_lookup")
    return ()
