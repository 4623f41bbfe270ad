"""One schedule family per file for CUDA: PrimFunc and candidate in, kernel or the reason why not out."""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.util import find_spec

from subtune.backends.cuda.device import CUDAModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload

PREFIX = "cuda."
"""Before the name of every candidate's template but `default`."""

_FAMILIES = "subtune.backends.cuda.families"

_LINKED = {"tirx.noalias": True, "op_pattern": 8}
"""What splicing marks every kernel with; one that was written anew gets it before it is measured."""


def schedule(workload: Workload, candidate: Candidate, device: CUDAModel) -> Kernel | NotApplicable:
    """Schedule `workload` as `candidate` says; its template `cuda.NAME` is the module NAME of this package."""
    name = candidate.family.removeprefix(PREFIX)
    is_foreign = not candidate.family.startswith(PREFIX) and name != "default"
    if is_foreign or not name.isidentifier() or find_spec(f"{_FAMILIES}.{name}") is None:
        return NotApplicable(f"unknown template {candidate.family!r}")
    result: Kernel | NotApplicable = importlib.import_module(f"{_FAMILIES}.{name}.schedule").schedule(
        workload, candidate, device
    )
    if isinstance(result, NotApplicable):
        return result
    return replace(result, func=result.func.with_attrs(_LINKED))
