"""Kernels for all instances of a workload, built once, checked and timed at some of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, Timing
from subtune.dynamic.kernel import numbers_of
from subtune.dynamic.serve import SCHEDULE, carried
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.measure.messages import Library
from subtune.measure.session import LocalSession

Extents = tuple[int, ...]

ANY = Candidate("default", (("dynamic", True),))
"""The default schedule among the candidates: in a session `DEFAULT` is what all are compared with."""
_TIME_S = 0.005
"""Of one timing of a kernel at an instance."""
_AGAIN = (2.0, 1.5)
"""Times the fastest kernel's seconds, up to which an instance's kernels are timed again, one after the other: who was
disturbed then, is not now."""
_HOPELESS = 2.0
"""Times the fastest kernel's seconds at two instances in a row, the second no better: a kernel is not for this one, nor
for smaller ones."""


@dataclass
class Measured:
    """`seconds` of kernels by instance, and why others are out.

    A schedule in blocks may hold for extents of at least a block only. Instances are measured from the greatest down,
    and where a kernel fails it does not serve that instance or any below: see `serves`.
    """

    libraries: dict[Candidate, Library] = field(default_factory=dict)
    seconds: dict[Candidate, dict[Extents, float]] = field(default_factory=dict)
    failures: dict[Candidate, Failure] = field(default_factory=dict)
    right: dict[Candidate, list[Extents]] = field(default_factory=dict)
    """Where a kernel's results were checked."""
    given_up: set[Candidate] = field(default_factory=set)
    """Far slower than others from some instance down, where they were not looked at any more."""

    def serves(self, candidate: Candidate, extents: Extents) -> bool:
        """Whether a kernel was right at instances that are not larger than this one in any extent."""
        if candidate not in self.failures and candidate not in self.given_up:
            return True
        least = [min(sizes) for sizes in zip(*self.right[candidate], strict=True)]
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
    with measurer.session(carried(workload, greatest), device, schedule=SCHEDULE) as builds, ExitStack() as stack:
        for candidate, built in builds.build(list(candidates), math.inf).items():
            if isinstance(built, Failure):
                found.failures[candidate] = built
            elif not exact_only or set(builds.library(candidate).granules) <= {1}:
                found.libraries[candidate] = builds.library(candidate)
        rows = max((max(library.granules, default=1) for library in found.libraries.values()), default=1) - 1
        sessions = {
            extents: stack.enter_context(measurer.session(workload.at(extents), device, rows_past_end=rows))
            for extents in sorted((*instances, *checks), key=lambda at: (-math.prod(at), at))
        }
        for session in sessions.values():  # what all are compared with is built while the first are measured
            session.prefetch([DEFAULT])
        at = _Instances(found, is_timed)
        for extents, session in sessions.items():
            at.look(extents, session, extents in instances)
    found.libraries = {one: library for one, library in found.libraries.items() if one in found.seconds}
    return found


@dataclass
class _Instances:
    """Looks at one instance after the other, from the greatest down."""

    found: Measured
    is_timed: bool
    slow: dict[Candidate, float] = field(default_factory=dict)
    """How many times as long as the fastest those kernels took at the last instance that took more than `_HOPELESS`."""

    def look(self, extents: Extents, session: LocalSession, is_measured: bool) -> None:
        """Check, and perhaps time, what is left at one instance."""
        found, timed = self.found, {}
        for candidate, library in found.libraries.items():
            if candidate in found.failures or candidate in found.given_up:
                continue
            lent = _named(candidate)
            numbers = numbers_of(extents, library.granules, library.knows_extents)
            past = numbers[0] * library.granules[0] - extents[0] if extents else 0
            session.lend(lent, replace(library, numbers=numbers, rows_past_end=past))
            checked = session.check(lent)
            if isinstance(checked, Failure):
                found.failures[candidate] = checked
                continue
            found.right.setdefault(candidate, []).append(extents)
            if not self.is_timed:
                found.seconds.setdefault(candidate, {})[extents] = checked.timing.median_s
            elif is_measured and (timing := self._timed(candidate, session)):
                timed[candidate] = timing
        if not timed:
            return
        for near in _AGAIN:
            best = min(timed.values())
            for candidate in [one for one, seconds in timed.items() if seconds <= near * best]:
                again = session.time(_named(candidate), _TIME_S, math.inf)
                if isinstance(again, Timing):
                    timed[candidate] = min(timed[candidate], again.min_s)
        self._keep(extents, timed)

    def _timed(self, candidate: Candidate, session: LocalSession) -> float | None:
        timing = session.time(_named(candidate), _TIME_S, math.inf)
        if isinstance(timing, Failure):
            self.found.failures[candidate] = timing
            return None
        return timing.min_s

    def _keep(self, extents: Extents, timed: dict[Candidate, float]) -> None:
        best = min(timed.values())
        for candidate, seconds in timed.items():
            self.found.seconds.setdefault(candidate, {})[extents] = seconds
            times = seconds / best
            if len(extents) == 1 and times > _HOPELESS and times >= self.slow.get(candidate, math.inf):
                self.found.given_up.add(candidate)
            self.slow[candidate] = times if times > _HOPELESS else math.inf


def _named(candidate: Candidate) -> Candidate:
    return ANY if candidate == DEFAULT else candidate
