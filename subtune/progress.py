"""How a long job tells its caller where it stands; the command line makes a progress bar of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """A moment of tuning. `done` of `total` steps (candidates) are over; times in seconds.

    `best_s` is the latency of the best candidate of `subgraph` so far and `gain` its default's over it; 0.0 while
    nothing has been timed. `eta_s` is the expected time to the end, 0.0 while unknown.
    """

    done: int
    total: int
    subgraph: str = ""
    best_s: float = 0.0
    gain: float = 0.0
    eta_s: float = 0.0


ProgressCallback = Callable[[Progress], None]
