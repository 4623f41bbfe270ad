"""Kernels for all instances of a workload, built once, checked and timed at some of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.measurement import Failure, FailureKind, Timing
from subtune.dynamic.kernel import numbers_of
from subtune.dynamic.serve import SCHEDULE, carried
from subtune.dynamic.workbench import Memory, Workbench
from subtune.dynamic.workload import DynamicWorkload
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
    and where a kernel fails, or falls far behind, it does not serve that instance or any below: see `serves`.
    """

    libraries: dict[Candidate, Library] = field(default_factory=dict)
    seconds: dict[Candidate, dict[Extents, float]] = field(default_factory=dict)
    failures: dict[Candidate, Failure] = field(default_factory=dict)
    right: dict[Candidate, list[Extents]] = field(default_factory=dict)
    """Where a kernel's results were checked."""

    def serves(self, candidate: Candidate, extents: Extents) -> bool:
        """Whether a kernel was right at instances that are not larger than this one in any extent."""
        if candidate not in self.failures:
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
    measurer: Workbench,
    is_timed: bool = True,
) -> Measured:
    """Build `candidates`, check them at every one of `instances` and time them there.

    What the workbench remembers is not built or measured again. What is new is kept instance by instance.

    Args:
        instances: the greatest of all among them.
        checks: where kernels are checked only.
        exact_only: without those that compute rows past the last one.
        is_timed: False leaves it at the seconds of the calls whose results are checked.
    """
    found = Measured()
    whole = carried(workload, max(instances, key=math.prod))
    memory = measurer.memory(whole, device)
    ordered = sorted((*instances, *checks), key=lambda at: (-math.prod(at), at))
    points = [(extents, is_timed and extents in instances) for extents in ordered]
    unknown = [
        one for one in candidates if not _is_out(memory.built(one), exact_only) and not memory.is_whole(one, points)
    ]
    if measurer.is_recall:
        candidates, unknown = [one for one in candidates if one not in unknown], []
    with ExitStack() as stack:
        builds: dict[Candidate, Library | Failure] = {}
        if unknown:
            session = stack.enter_context(measurer.session(whole, device, schedule=SCHEDULE))
            built = session.build(unknown, math.inf)
            builds = {one: how if isinstance(how, Failure) else session.library(one) for one, how in built.items()}
            memory.add_builds(builds)
        for candidate in candidates:
            library = builds.get(candidate) or memory.built(candidate)
            if isinstance(library, Failure):
                found.failures[candidate] = library
            elif library and not _is_out(library, exact_only):
                found.libraries[candidate] = library
        rows = max((max(library.granules, default=1) for library in found.libraries.values()), default=1) - 1
        sessions = {}
        for extents in ordered if unknown else ():
            sessions[extents] = stack.enter_context(measurer.session(workload.at(extents), device, rows_past_end=rows))
            sessions[extents].prefetch([DEFAULT])  # what all are compared with is built while the first are measured
        looks = _Looks(found, memory, is_timed)
        for count, (extents, is_wanted) in enumerate(points, 1):
            looks.at(extents, sessions.get(extents), is_wanted)
            best_s = min((of[ordered[0]] for of in found.seconds.values() if ordered[0] in of), default=math.inf)
            measurer.tell(len(candidates) * count // len(points), len(candidates), best_s)
    found.libraries = {one: library for one, library in found.libraries.items() if one in found.seconds}
    return found


def _is_out(library: Library | Failure | None, exact_only: bool) -> bool:
    """Whether it computes rows past the last one where none may be."""
    return exact_only and isinstance(library, Library) and not set(library.granules) <= {1}


@dataclass
class _Looks:
    """At one instance after the other, from the greatest down."""

    found: Measured
    memory: Memory
    is_timed: bool
    slow: dict[Candidate, float] = field(default_factory=dict)
    """How many times as long as the fastest kernels took that were beyond `_HOPELESS` at the last instance."""

    def at(self, extents: Extents, session: LocalSession | None, is_wanted: bool) -> None:
        """Check, and perhaps time, what is left; or remember."""
        found = self.found
        results: dict[Candidate, float | Failure] = {}
        left: dict[Candidate, Library] = {}
        for candidate, library in found.libraries.items():
            if candidate in found.failures:
                continue
            known = self.memory.outcome(candidate, extents, is_wanted)
            if known is not None:
                results[candidate] = known
            else:
                left[candidate] = library
        if left and session is not None:
            results |= self._now(extents, session, left, is_wanted)
        if is_wanted:
            self._leave_hopeless(extents, results)
        news = {one: of for one, of in results.items() if of != self.memory.outcome(one, extents, is_wanted)}
        self.memory.add_outcomes(extents, news, is_wanted)
        for candidate, result in results.items():
            if isinstance(result, Failure):
                found.failures[candidate] = result
                continue
            found.right.setdefault(candidate, []).append(extents)
            if is_wanted or not self.is_timed:
                found.seconds.setdefault(candidate, {})[extents] = result

    def _now(
        self, extents: Extents, session: LocalSession, libraries: Mapping[Candidate, Library], is_wanted: bool
    ) -> dict[Candidate, float | Failure]:
        """Seconds of each library, or why there are none."""
        results: dict[Candidate, float | Failure] = {}
        by_layout = sorted(
            libraries.items(), key=lambda one: str(one[1].packings)
        )  # which are made one after the other
        for candidate, library in by_layout:
            lent = _named(candidate)
            numbers = numbers_of(extents, library.granules, library.knows_extents)
            past = numbers[0] * library.granules[0] - extents[0] if extents else 0
            session.lend(lent, replace(library, numbers=numbers, rows_past_end=past))
            checked = session.check(lent)
            if isinstance(checked, Failure):
                results[candidate] = checked
                continue
            timing = session.time(lent, _TIME_S, math.inf) if is_wanted else checked.timing
            results[candidate] = timing.min_s if isinstance(timing, Timing) else timing
        for near in _AGAIN if is_wanted else ():
            seconds = {one: of for one, of in results.items() if not isinstance(of, Failure)}
            best = min(seconds.values(), default=0.0)
            for candidate in [one for one, of in seconds.items() if of <= near * best]:
                again = session.time(_named(candidate), _TIME_S, math.inf)
                if isinstance(again, Timing):
                    results[candidate] = min(seconds[candidate], again.min_s)
        return results

    def _leave_hopeless(self, extents: Extents, results: dict[Candidate, float | Failure]) -> None:
        """Kernels that fall behind the smaller an instance is."""
        seconds = {one: of for one, of in results.items() if not isinstance(of, Failure)}
        best = min(seconds.values(), default=0.0)
        for candidate, of in seconds.items():
            times = of / best
            if len(extents) == 1 and times > _HOPELESS and times >= self.slow.get(candidate, math.inf):
                reason = f"{times:.1f} times as long as the fastest at {extents[0]}"
                results[candidate] = Failure(FailureKind.SLOW, reason)
            self.slow[candidate] = times if times > _HOPELESS else math.inf


def _named(candidate: Candidate) -> Candidate:
    return ANY if candidate == DEFAULT else candidate
