"""What the tuner asks of whoever measures: build, check and time, compare with the default."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.measurement import Built, Comparison, Failure, Timing
from subtune.core.workload import Workload


class Session(Protocol):
    """One workload on one device. Outcomes are values: no candidate, however broken, makes a method raise.

    A `deadline` is a value of `time.monotonic()`; what would begin after it is left out. What has begun may
    finish, unless the session's own deadline comes first.
    """

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        """Schedule and compile in parallel, in the order given; candidates the deadline cut off are missing."""
        ...

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        """Check a built candidate's outputs (once), then time it for about `seconds`.

        It is given up when its first calls all take more than `stop_above_s` seconds: it cannot win any more.
        """
        ...

    def compare(self, candidate: Candidate, seconds: float) -> Comparison | Failure:
        """Time a checked candidate and the default in turns for about `seconds`, and check its outputs again."""
        ...


class Measurer(Protocol):
    def session(self, workload: Workload, device: Device, deadline: float) -> AbstractContextManager[Session]:
        """Ready to measure candidates of `workload`; `compare` and `time` build the default when it is needed.

        At `deadline` (`time.monotonic()`) whatever still runs is ended: it counts as a failure of kind timeout.
        """
        ...
