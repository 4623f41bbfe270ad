"""What the measurer must know of a kind of device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from subtune.core.candidate import Candidate
from subtune.core.measurement import Comparison, Failure, Timing


@dataclass(frozen=True, slots=True)
class Measuring:
    """How kernels of a kind of device are built and timed on this machine."""

    overlaps: bool = False
    """Building takes nothing from what is timed: the next workloads are built meanwhile."""
    builders_per_core: float = 1.0
    builder_environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    builder_niceness: int = 0
    """By how much builders stand back where others want the same core: those who check and time, most of all."""
    builder_modules: tuple[str, ...] = ()
    """What builders load before their first job."""
    build_limit_s: float = float("inf")
    """Of one candidate, where others wait for the slowest."""
    limits_memory: bool = True
    """Whether worker processes get a limit of address space."""
    forks_runner: bool = False
    """Who checks and times is forked from the builders' server too: where they differ in their threads alone."""
    has_spare_runner: bool = False
    """A crashed runner is replaced by one that waits with everything loaded."""
    grace_s: float = 1.0
    """What nobody wants any more may run on for about as long as a new process takes to start: ended at once, the
    process would be missing for as long. Where there is silence to keep it ends at once."""
    max_crashes: int | None = None
    """Of one family's kernels, before the rest of them is not tried."""
    reference: Candidate | None = None
    """A candidate, built beside the default schedule, whose results are the reference."""


class Bench(Protocol):
    """In the runner process: one workload with its inputs and reference outputs."""

    @property
    def default_s(self) -> float: ...

    @property
    def nbytes(self) -> int:
        """What it holds, roughly."""

    @property
    def is_whole(self) -> bool:
        """Whether there are reference outputs for all input sets."""

    def prepare(self, patience_s: float) -> None:
        """Compute more reference outputs, as far as `patience_s` seconds reach."""

    def check(self, job: Any) -> Comparison | Failure: ...

    def time(self, job: Any) -> Timing | Failure: ...

    def compare(self, job: Any) -> Comparison | Failure: ...
