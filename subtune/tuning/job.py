"""What is searched for, and the steps of a search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from subtune.backends.base import Device
from subtune.core.workload import Workload


class Tunable(Protocol):
    """What `tune` needs to know of a subgraph."""

    @property
    def workload(self) -> Workload: ...

    @property
    def uses(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Single:
    """A workload without its subgraph, and how often a model calls it."""

    workload: Workload
    uses: int = 1


def is_static(workload: Workload) -> bool:
    """Whether all its dims are numbers."""
    return all(isinstance(dim, int) for arg in workload.args for dim in arg.shape)


class Step(IntEnum):
    """What a search does next, in this order."""

    FIRST = 0  # the default and the candidate predicted fastest are built and checked
    SETTLE = 1  # the first is checked on all inputs, and timed in turns with the default, where one is still to be done
    WAVE = 2  # some more are built, checked and timed for a moment
    FINISH = 3  # successive halving among all that was built, and the winner in turns with the default
    DONE = 4


@dataclass(frozen=True, slots=True)
class Job:
    """What is searched for. `uses` is how often the model runs the workload; `bound_s` what it takes at least."""

    workload: Workload
    device: Device
    topk: int
    uses: int = 1
    bound_s: float = 0.0
    share_s: float = math.inf
    """Seconds of a short budget for each of the workloads."""

    @property
    def is_hurried(self) -> bool:
        """Time is short: others want a turn soon, and what is known by the way is confirmed by the way."""
        return not math.isinf(self.share_s)
