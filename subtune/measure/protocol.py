"""What the search asks of whoever measures: build, check, time, compare with the default.

Sessions of many workloads may be open
at once, and a search comes back to each as often as it likes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Built, Comparison, Failure, Timing
from subtune.core.workload import Workload


class Session(Protocol):
    """One workload on one device. Outcomes are values: no candidate, however broken, makes a method raise.

    A `deadline` is a value of `time.monotonic()`; what would begin after it is left out. What has begun may
    finish, unless the session's own deadline comes first.

    Raises (all but `prefetch`):
        SubtuneError: the default schedule, with which all is compared, cannot be built or run.
    """

    def move(self, site: int) -> None:
        """Candidates are checked and timed on the site of this number from here on; on the first, if nobody says."""
        ...

    def prefetch(self, candidates: Sequence[Candidate]) -> None:
        """Begin to build what `build` will be asked for, as soon as nothing more urgent waits; returns at once."""
        ...

    def build(self, candidates: Sequence[Candidate], deadline: float) -> dict[Candidate, Built | Failure]:
        """Schedule and compile in parallel, in the order given; candidates the deadline cut off are missing."""
        ...

    def check(self, candidate: Candidate, patience_s: float = math.inf) -> Comparison | Failure:
        """Check a built candidate's outputs, and say what its few calls took beside those of the default.

        Builds may run meanwhile: the noise of such a comparison is large, and only a factor says something.

        Args:
            patience_s: seconds that the default may take to compute outputs to compare with, beyond those of one input
                set; where it takes longer, the others are left for a later check, and the comparison is partial.
        """
        ...

    def time(self, candidate: Candidate, seconds: float, stop_above_s: float) -> Timing | Failure:
        """Check a built candidate's outputs (once), then time it for about `seconds`, with nothing beside it.

        It is given up when its first calls all take more than `stop_above_s` seconds: it cannot win any more.
        """
        ...

    def compare(self, candidate: Candidate, seconds: float, other: Candidate = DEFAULT) -> Comparison | Failure:
        """Time a checked candidate and another in turns for about `seconds`, and check its outputs again.

        The other's timing is the comparison's `default_timing`.
        """
        ...


class Measurer(Protocol):
    @property
    def sites(self) -> int:
        """How many devices there are of the kind, on each of which one thread may measure at a time; as many from
        beginning to end."""
        ...

    def is_there(self, site: int) -> bool:
        """Whether the device of that number is. One that is lost may come back.

        Raises DevicesLost where none is, and none comes back.
        """
        ...

    def overlaps(self, device: Device) -> bool:
        """Whether building takes nothing from what is timed."""
        ...

    def interrupt(self) -> None:
        """Whatever other threads wait for here soon raises KeyboardInterrupt; later calls, too."""
        ...

    def start(self, device: Device) -> None:
        """Begin to get ready for sessions on `device`; returns at once."""
        ...

    def session(
        self, workload: Workload, device: Device, deadline: float = math.inf
    ) -> AbstractContextManager[Session]:
        """Ready to measure candidates of `workload`; the default is built when it is needed.

        At `deadline` (`time.monotonic()`) whatever still runs is ended: it counts as a failure of kind timeout.
        """
        ...
