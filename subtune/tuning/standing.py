"""How far a search is, for those who watch it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from subtune.core.progress import Progress
from subtune.tuning.job import Step
from subtune.tuning.workload_search import WorkloadSearch


def standing(
    search: WorkloadSearch, searches: Sequence[WorkloadSearch], done: int, total: int, times: tuple[float, float]
) -> Progress:
    """After an outcome of `search`, one of the `searches` that go on; `done` of `total` workloads are through.

    Args:
        times: when the run began and when it has to end, by the monotonic clock; the end may be infinity.
    """
    now, (begin, deadline) = time.monotonic(), times
    tried = sum(one.tried / max(1, one.candidates) for one in searches if one.step != Step.DONE)
    share = min(1.0, (done + tried) / max(1, total))
    # Before anything is known of the pace, only the budget bounds the time to go.
    eta_s = (now - begin) * (1 - share) / share if share else math.inf
    return Progress(
        search.job.workload.key,
        done,
        total,
        search.tried,
        search.candidates,
        search.best_s,
        max(0.0, min(eta_s, deadline - now)),
        share,
    )
