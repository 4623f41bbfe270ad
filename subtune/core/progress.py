"""How tuning tells its caller where it stands; the command line makes a progress bar of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a tuning run stands, after every outcome."""

    workload_key: str
    done: int
    """Workloads finished, of `total`."""
    total: int
    tried: int
    """Candidates of the present workload that have an outcome, of `candidates`."""
    candidates: int
    best_s: float
    """Fastest time of the present workload so far, in seconds; infinite before the first."""
    eta_s: float
    """Seconds until the end; infinite while nothing is known of the pace."""
    share: float = 0.0
    """How much of the work is over, from 0 to 1: candidates of all workloads that have an outcome."""


ProgressCallback = Callable[[Progress], None]
