"""Workloads read from text, in a process that knows the operators that they may have."""

from __future__ import annotations

import subtune.tir.fused  # noqa: F401  # registers one
from subtune.core.workload import Workload


def read_workload(text: str, num_outputs: int) -> Workload:
    """What `Workload.to_json` wrote."""
    return Workload.from_json(text, num_outputs)
