"""Kernels for all instances of a workload, built once, checked and timed at some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Comparison, Failure, Timing
from subtune.dynamic.kernel import numbers_of
from subtune.dynamic.serve import SCHEDULE, carried
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.measure.messages import Library

Extents = tuple[int, ...]

ANY = Candidate("default", (("dynamic", True),))
"""The default schedule among the candidates: in a session `DEFAULT` is what all are compared with."""
_TIME_S = 0.01
"""Of the timing of one kernel at one instance."""


@dataclass
class Measured:
    """`seconds` of kernels by instance, and why others are out.

    A schedule in blocks may hold for extents of at least a block only. Instances are measured from the greatest down,
    and where a kernel fails it does not serve that instance or any below: see `serves`.
    """

    libraries: dict[Candidate, Library] = field(default_factory=dict)
    seconds: dict[Candidate, dict[Extents, float]] = field(default_factory=dict)
    failures: dict[Candidate, Failure] = field(default_factory=dict)

    def serves(self, candidate: Candidate, extents: Extents) -> bool:
        """Whether a kernel was right at instances that are not larger than this one in any extent."""
        if candidate not in self.failures:
            return True
        least = [min(sizes) for sizes in zip(*self.seconds[candidate], strict=True)]
        return all(extent >= low for extent, low in zip(extents, least, strict=True))


def measured(
    workload: DynamicWorkload,
    candidates: Sequence[Candidate],
    instances: Sequence[Extents],
    checks: Sequence[Extents],
    exact_only: bool,
    device: Device,
    measurer: LocalMeasurer,
    is_timed: bool = True,
) -> Measured:
    """Build `candidates`, check them at every one of `instances` and time them there.

    Args:
        instances: the greatest of all among them.
        checks: where kernels are checked only.
        exact_only: without those that compute rows past the last one.
        is_timed: False leaves it at the seconds of the calls whose results are checked.
    """
    found = Measured()
    greatest = max(instances, key=math.prod)
    with measurer.session(carried(workload, greatest), device, schedule=SCHEDULE) as builds:
        for candidate, built in builds.build(list(candidates), math.inf).items():
            if isinstance(built, Failure):
                found.failures[candidate] = built
            elif not exact_only or set(builds.library(candidate).granules) <= {1}:
                found.libraries[candidate] = builds.library(candidate)
        for extents in sorted((*instances, *checks), key=lambda at: (-math.prod(at), at)):
            _at(workload, extents, device, measurer, found, is_timed and extents in instances)
    found.libraries = {one: library for one, library in found.libraries.items() if one in found.seconds}
    return found


def _at(
    workload: DynamicWorkload,
    extents: Extents,
    device: Device,
    measurer: LocalMeasurer,
    found: Measured,
    is_timed: bool,
) -> None:
    """Check, and perhaps time, what is left at one instance."""
    left = {one: library for one, library in found.libraries.items() if one not in found.failures}
    rows = max((max(library.granules, default=1) for library in left.values()), default=1) - 1
    with measurer.session(workload.at(extents), device, rows_past_end=rows) as session:
        for candidate, library in left.items():
            lent = _named(candidate)
            numbers = numbers_of(extents, library.granules, library.knows_extents)
            past = numbers[0] * library.granules[0] - extents[0] if extents else 0
            session.lend(lent, replace(library, numbers=numbers, rows_past_end=past))
            checked = session.check(lent)
            timing = checked.timing if isinstance(checked, Comparison) else checked
            if is_timed and isinstance(timing, Timing):
                timing = session.time(lent, _TIME_S, math.inf)
            if isinstance(timing, Timing):
                found.seconds.setdefault(candidate, {})[extents] = timing.median_s
            else:
                found.failures[candidate] = timing


def _named(candidate: Candidate) -> Candidate:
    return ANY if candidate == DEFAULT else candidate
