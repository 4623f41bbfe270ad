"""Whose turn it is: the first candidate of every workload, then what is expected to save most for its time.

All of it is arithmetic on recorded outcomes: the same outcomes give the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from subtune.backends.base import Device
from subtune.core.workload import Workload
from subtune.measure.halving import FULL_S, LOOK_S
from subtune.runtime.host import usable_cores
from subtune.tuning.job import Step
from subtune.tuning.roofline import narrowest_input, operations
from subtune.tuning.workload_search import WorkloadSearch

_GROUP = 3
"""So many workloads are built together: while the last candidates of one leave cores idle, the next take them."""
_UNDER_WAY = 4 * _GROUP
"""So many take turns where builds run beside measurements: the next candidates of all but the group that is timed are
being built. Where each group went all its way before the next began, builders and GPU waited for one another in turn:
on an H200 beside 16 cores each was idle for half of a search."""
_AHEAD = _UNDER_WAY + _GROUP  # who comes next when a search is done should find its first ones built
_WORTH_JOINING = 1 / 4
"""Of the rate of the first in a group: who saves less per second waits."""
_LEFT_AFTER_FIRST = 0.15
"""What the best of all candidates saves of the latency of the one predicted fastest: 13 % over the first six of 98
workloads of the zoo, of which the second brings 10 and the third 1.5. After n candidates a 1/n of it is left."""
_FINISH_SAVES = 0.01
_LEAST_S = 1e-6
"""Of a wave: one that has no candidates left takes no time, and comes first."""
_PLAIN = 400
"""Times the roofline, what a workload takes that has only its first check: a call of the plain schedule, or a few."""
_CHECKED_CALLS = 10
"""Of the default, or of a candidate: what preparing, checking and comparing take beside the time asked for."""


def bound_s(workload: Workload, device: Device) -> float:
    """A workload takes at least the time of its arithmetic, at the highest rate there is, and that of its bytes."""
    model = device.model
    rate = max(model.peak_flops(), model.peak_flops(narrowest_input(workload)))
    return max(operations(workload) / rate, workload.nbytes / model.dram_bytes_per_s)


def next_turn(searches: Sequence[WorkloadSearch], is_hurried: bool, overlaps: bool = False) -> list[WorkloadSearch]:
    """The searches that take their next steps together; empty when all are done. `searches` are in order of stakes.

    Args:
        overlaps: builds run beside measurements.
    """
    first = [search for search in searches if search.step == Step.FIRST]
    if first:
        return within_share_first(first) if is_hurried else first
    going = [search for search in searches if search.step != Step.DONE]
    if not is_hurried or not going:
        return sorted(going[: _UNDER_WAY if overlaps else _GROUP], key=lambda search: search.turns)[:_GROUP]
    rates = {search.job.workload.key: saved_s(search) / cost_s(search) for search in going}
    going.sort(key=lambda search: (-rates[search.job.workload.key], search.job.workload.key))
    least = _WORTH_JOINING * rates[going[0].job.workload.key]
    return [search for search in going[:_GROUP] if rates[search.job.workload.key] >= least]


def free_for(site: int, searches: Sequence[WorkloadSearch], is_there: Callable[[int], bool]) -> list[WorkloadSearch]:
    """Those that may take their turn on a device: none is on two, and each stays where it began, if that is there."""
    if not is_there(site):
        return []
    free = [search for search in searches if not search.is_taken]
    return [search for search in free if search.site in (None, site) or not is_there(search.site)]


def within_share_first(searches: Sequence[WorkloadSearch]) -> list[WorkloadSearch]:
    """Those whose first check may take more than their share of the budget come after all others, the longest last.

    Else one plain schedule that runs for seconds leaves nothing for the others, and comes to nothing itself.
    """
    return sorted(searches, key=lambda search: max(0.0, _PLAIN * search.job.bound_s - search.job.share_s))


def next_builds(searches: Sequence[WorkloadSearch], is_hurried: bool) -> list[WorkloadSearch]:
    """Those of `searches` whose next candidates are built before their turn comes, where builds disturb nothing."""
    return next_turn(searches, is_hurried)[:_GROUP] if is_hurried else list(searches[:_AHEAD])


def second_builds(searches: Sequence[WorkloadSearch]) -> list[WorkloadSearch]:
    """Those of `searches`, of which none has begun, whose second candidates are built beside the first ones of all."""
    return list(searches[:_GROUP])


def may_join(searches: Sequence[WorkloadSearch], is_hurried: bool) -> bool:
    """Whether others may begin that these may outrun: all have their first candidates, and where there is time, so few
    have any left to build that builders would wait for work."""
    steps = [search.step for search in searches]
    return all(step > Step.SETTLE for step in steps) and (is_hurried or steps.count(Step.WAVE) <= _GROUP)


def saved_s(search: WorkloadSearch) -> float:
    """Seconds of the model's latency that the next step is expected to save."""
    job, record = search.job, search.record
    default_s = search.default_timing.min_s if search.default_timing else math.inf
    now_s = record.timing.min_s if record else default_s
    if math.isinf(now_s):  # nothing was timed: the default is all there is
        return 0.0
    best_s = min(search.best_s, now_s)
    known_s = now_s - best_s  # seen, and not confirmed
    left = max(0.0, 1 - job.bound_s / best_s) if best_s > 0 else 0.0
    if search.step == Step.WAVE:
        tried = max(1, len(search.looks) or search.tried)
        hoped_s = _LEFT_AFTER_FIRST * left * best_s * (1 / tried - 1 / (tried + max(1, len(search.portion()))))
        return job.uses * (hoped_s if record else hoped_s + known_s)
    return job.uses * (known_s + _FINISH_SAVES * best_s)


def cost_s(search: WorkloadSearch) -> float:
    """Seconds that the next step is expected to take."""
    default_s = search.default_timing.min_s if search.default_timing else 0.0
    best_s = min(search.best_s, default_s)
    if search.step == Step.WAVE:
        count = len(search.portion())
        return max(_LEAST_S, count * (search.build_s / usable_cores() + LOOK_S + _CHECKED_CALLS * best_s))
    if search.step == Step.SETTLE:
        return FULL_S + _CHECKED_CALLS * (default_s + best_s)
    return 3 * FULL_S + len(search.looks) * FULL_S / 8 + _CHECKED_CALLS * (default_s + best_s)
