"""One schedule family per file: PrimFunc and candidate in, schedule or the reason why not out."""

from __future__ import annotations

import importlib

from subtune.candidate import Candidate
from subtune.device import CPUModel
from subtune.kernel import Kernel, NotApplicable
from subtune.workload import Workload

_TEMPLATES = ("default", "contraction", "window", "rowwise", "elementwise")


def schedule(workload: Workload, candidate: Candidate, device: CPUModel) -> Kernel | NotApplicable:
    """Schedule `workload` as `candidate` says, with the template it names."""
    if candidate.template not in _TEMPLATES:
        return NotApplicable(f"unknown template {candidate.template!r}")
    module = importlib.import_module(f"subtune.templates.{candidate.template}")
    result: Kernel | NotApplicable = module.schedule(workload, candidate, device)
    return result
