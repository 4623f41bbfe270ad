"""Kernels for all instances of a workload, built once, checked and timed at some of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import Extents
from subtune.core.measurement import Failure
from subtune.dynamic.kernel import most_rows
from subtune.dynamic.kernels import Kernels
from subtune.dynamic.marks import alone, is_alone, of_family
from subtune.dynamic.measured import Measured, is_beyond
from subtune.dynamic.serve import carried
from subtune.dynamic.timing import MOST_AGAIN, less, timed
from subtune.dynamic.workbench import Memory, Workbench
from subtune.dynamic.working_set import DeviceAt
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure.messages import Library
from subtune.measure.session import LocalSession

if TYPE_CHECKING:
    from subtune.dynamic.refine import HeldOut

_DOUBTFUL = 1.12
"""Times what a kernel takes at an instance by a line through its neighbours: a tile more or less takes no more."""
_NEAR = 1.3
"""Times the fastest kernel's seconds, up to which a kernel is measured at the next smaller instance, too."""
_NEAR_UPWARD = 1.12
"""The same of the next larger one, where it was not measured yet."""
_LEAST = 6
"""Kernels that an instance is measured with, where there are so many."""
_OF_ONE = 3
"""Of the fastest kernels where every extent has one element: as kernels of that instance alone they may be faster."""
_REACH = 2.6
"""Times an extent for which a kernel was proposed, or its inverse: up to there it is measured in any case."""


class Measurement:
    """Candidates checked at instances, and timed there.

    What the workbench remembers is not built or measured again. What is new is kept instance by instance.

    Args:
        candidates: with the instances for which they were proposed. Where all instances are in one line, none larger
            in one extent and smaller in another, a kernel is measured near those, and as far down as it is near the
            fastest; without such instances, everywhere.
        instances: the greatest of all among them.
        checks: where kernels are checked only.
        exact_only: without kernels that compute rows past the last one.
        is_timed: False leaves it at the seconds of the calls whose results are checked.
        further: an instance at which some kernels are to be timed besides, until there is none.
        in_haste: nobody asks which of two kernels that take about as long is the faster one.
        at: the device as an instance finds it; None: as it is.
    """

    def __init__(
        self,
        workload: DynamicWorkload,
        candidates: Mapping[Candidate, Sequence[Extents]],
        instances: Sequence[Extents],
        checks: Sequence[Extents],
        exact_only: bool,
        device: Device,
        measurer: Workbench,
        is_timed: bool = True,
        further: HeldOut | None = None,
        in_haste: bool = False,
        at: DeviceAt | None = None,
    ) -> None:
        ordered = _from_above((*instances, *checks))
        self._workload, self._candidates, self._ordered, self._device = workload, candidates, ordered, device
        self._points = [(extents, is_timed and extents in instances) for extents in ordered]
        self._measurer, self._further = measurer, further
        self._past = max((most_rows(workload, of_family(one), device) for one in candidates), default=1) - 1
        self._stack = ExitStack()
        self._sessions: dict[Extents, LocalSession] = {}
        whole = carried(workload, ordered[0])
        self._at = at or (lambda extents: device)
        memory = measurer.memory(whole, device, self._at)
        self._kernels = Kernels(self._stack, whole, device, measurer, memory, exact_only)
        tiles = {one: device.backend.shape_of_tile(of_family(one)) for one in candidates}
        found = Measured(threads=device.model.host.threads, tiles=tiles, ends=(ordered[0], ordered[-1]))
        in_line = all(_is_below(low, high) for high, low in pairwise(ordered))
        self._looks = _Looks(found, memory, self._kernels, candidates, in_line, is_timed, in_haste=in_haste)
        self._unknown: list[Candidate] | None = None

    def begin(self) -> None:
        """Let all be built that has to be: the kernels, then what they are compared with. Returns at once."""
        if self._unknown is not None:
            return
        self._unknown = [] if self._measurer.is_recall else self._looks.unknown(self._points)
        if not self._unknown:
            return
        self._kernels.prefetch(self._unknown)
        likely = (
            self._further.likely(self._ordered) if self._further and self._device.backend.measuring.overlaps else ()
        )
        for extents in (*self._ordered, *likely):
            self._session(extents).prefetch([DEFAULT])

    def result(self) -> Measured:
        self.begin()
        if self._unknown:
            self._kernels.built(self._unknown)
        session = None if self._measurer.is_recall else self._session
        looks, greatest = self._looks, self._ordered[0]
        of_instances = [extents for extents, is_timed in self._points if is_timed]
        for count, (extents, is_wanted) in enumerate(self._points, 1):
            looks.at(extents, session, is_wanted, looks.wanted(extents))
            best_s = min((of[greatest] for of in looks.found.seconds.values() if greatest in of), default=math.inf)
            total = len(self._candidates)
            self._measurer.tell(total * count // len(self._points), total, best_s)
        from_below = of_instances[::-1] if looks.in_line else []
        for low, high in pairwise(from_below):
            if more := looks.upward(low, high):
                looks.at(high, session, True, more)
        looks.end()
        if of_one := self._alone(looks.found):
            looks.at(self._ordered[-1], session, True, of_one)
        while self._further is not None and (asked := self._further(looks.found)):
            looks.at(asked[0], session, True, asked[1], is_further=True)
        for _ in range(MOST_AGAIN if session is not None else 0):
            for extents, doubtful in looks.doubtful().items():
                looks.again(extents, self._session(extents), doubtful)
        return looks.found

    def close(self) -> None:
        self._stack.close()

    def _alone(self, found: Measured) -> list[Candidate]:
        """The fastest kernels where every extent has one element, as kernels of that instance alone."""
        if not any(map(is_alone, self._candidates)):
            return []
        seconds = {one: of[self._ordered[-1]] for one, of in found.seconds.items() if self._ordered[-1] in of}
        fastest = sorted(seconds, key=seconds.__getitem__)[:_OF_ONE]
        more = {alone(one): found.tiles[one] for one in fastest if not is_alone(one) and one.family != DEFAULT.family}
        found.tiles |= more
        return [one for one in more if one not in self._candidates]

    def _session(self, extents: Extents) -> LocalSession:
        if extents not in self._sessions:
            opened = self._measurer.session(self._workload.at(extents), self._at(extents), rows_past_end=self._past)
            self._sessions[extents] = self._stack.enter_context(opened)
        return self._sessions[extents]


def _is_below(low: Extents, high: Extents) -> bool:
    return all(one <= other for one, other in zip(low, high, strict=True))


@dataclass
class _Looks:
    """At one instance after the other, from the greatest down."""

    found: Measured
    memory: Memory
    kernels: Kernels
    candidates: Mapping[Candidate, Sequence[Extents]]
    in_line: bool
    is_timed: bool
    fresh: dict[Extents, set[Candidate]] = field(default_factory=dict)
    """Kernels that were timed now, not remembered."""
    near: set[Candidate] = field(default_factory=set)
    """The fastest kernels at the last instance that was timed."""
    in_haste: bool = False

    def unknown(self, points: Sequence[tuple[Extents, bool]]) -> list[Candidate]:
        """Those that have to be built: of which not all is remembered where they are measured whatever others take."""
        alive = [one for one in self.candidates if not isinstance(self.kernels.facts(one), Failure)]
        of = {one: [point for point in points if self._is_wanted(one, point[0])] for one in alive}
        return [one for one in alive if not self.memory.is_whole(one, of[one])]

    def _is_wanted(self, candidate: Candidate, extents: Extents) -> bool:
        facts = self.kernels.facts(candidate)
        is_served = not isinstance(facts, Library) or not is_beyond(extents, facts)
        return is_served and self._is_proposed(candidate, extents)

    def _is_proposed(self, candidate: Candidate, extents: Extents) -> bool:
        origins = self.candidates[candidate]
        return not (self.in_line and self.is_timed and origins) or any(_reaches(extents, at) for at in origins)

    def wanted(self, extents: Extents) -> list[Candidate]:
        """Those proposed for about such extents, and some more where few of them can be built; those near the best."""
        alive = [one for one in self.candidates if not isinstance(self.kernels.facts(one), Failure)]
        proposed = {one for one in alive if self._is_proposed(one, extents)}
        others = sorted((one for one in alive if one not in proposed), key=lambda one: self._distance(one, extents))
        proposed.update(others[: max(0, _LEAST - len(proposed))])
        return [one for one in self.candidates if one in proposed or one in self.near]

    def upward(self, low: Extents, high: Extents) -> list[Candidate]:
        """Those nearly the fastest at an instance that were not looked at where the next larger one was."""
        at_low = {one: of[low] for one, of in self.found.seconds.items() if low in of}
        best = min(at_low.values(), default=0.0)
        near = [one for one, seconds in at_low.items() if seconds <= _NEAR_UPWARD * best and one in self.candidates]
        return [one for one in near if high not in self.found.seconds[one] and one not in self.found.failures]

    def _distance(self, candidate: Candidate, extents: Extents) -> float:
        return min(math.dist([*map(math.log, extents)], [*map(math.log, at)]) for at in self.candidates[candidate])

    def at(
        self,
        extents: Extents,
        session: Callable[[Extents], LocalSession] | None,
        is_timed: bool,
        candidates: Sequence[Candidate],
        is_further: bool = False,
    ) -> None:
        """Check, and perhaps time, `candidates`; or remember."""
        found = self.found
        results: dict[Candidate, float | Failure] = {}
        left: list[Candidate] = []
        for candidate in [one for one in candidates if is_further or one not in found.failures]:
            known = self.memory.outcome(candidate, extents, is_timed)
            facts = self.kernels.facts(candidate)
            if isinstance(facts, Failure):
                found.failures[candidate] = facts
            elif facts is not None and is_beyond(extents, facts):
                continue
            elif facts is not None and known is not None:
                found.libraries[candidate] = facts
                results[candidate] = known
            elif session is not None:
                left.append(candidate)
        built = self.kernels.built(left) if left else {}
        found.failures |= {one: how for one, how in built.items() if isinstance(how, Failure)}
        libraries = {one: how for one, how in built.items() if isinstance(how, Library)}
        found.libraries |= libraries
        libraries = {one: how for one, how in libraries.items() if not is_beyond(extents, how)}
        if libraries and session is not None:
            above = {one: least for one in libraries if (least := _least_above(found.seconds.get(one, {}), extents))}
            is_end = not is_timed or extents in found.ends
            seen = [one for one in libraries if is_further or (found.right.get(one) and not is_end)]
            results |= timed(extents, session(extents), libraries, is_timed, seen, above, self.in_haste)
            self.fresh.setdefault(extents, set()).update(libraries if is_timed else ())
        if is_timed and not is_further:
            seconds = {one: of for one, of in results.items() if not isinstance(of, Failure)}
            self.near = {one for one, of in seconds.items() if of <= _NEAR * min(seconds.values())}
        news = {one: of for one, of in results.items() if of != self.memory.outcome(one, extents, is_timed)}
        self.memory.add_outcomes(extents, news, is_timed)
        for candidate, result in results.items():
            if isinstance(result, Failure):
                found.failures[candidate] = result
                if is_further:  # it is not what it seemed
                    del found.right[candidate]
                continue
            if not is_further:
                found.right[candidate] = _from_above([*found.right.get(candidate, ()), extents])
            if is_timed or not self.is_timed:
                found.seconds.setdefault(candidate, {})[extents] = result

    def doubtful(self) -> dict[Extents, list[Candidate]]:
        """Kernels that took longer at an instance than what they took at a smaller and at a larger one lets expect."""
        found: dict[Extents, list[Candidate]] = {}
        for candidate, of in self.found.seconds.items() if self.in_line and not self.in_haste else ():
            points = sorted(of, key=math.prod)
            for low, at, high in zip(points, points[1:], points[2:], strict=False):
                share = math.log(math.prod(at) / math.prod(low)) / math.log(math.prod(high) / math.prod(low))
                expected = of[low] ** (1 - share) * of[high] ** share
                if of[at] > _DOUBTFUL * expected and candidate in self.fresh.get(at, ()):
                    found.setdefault(at, []).append(candidate)
        return found

    def again(self, extents: Extents, session: LocalSession, candidates: Sequence[Candidate]) -> None:
        """Time them once more; the least counts."""
        news: dict[Candidate, float | Failure] = {}
        with session.silence():
            for candidate in candidates:
                taken = self.found.seconds[candidate]
                news[candidate] = taken[extents] = less(session, candidate, taken[extents])
        self.memory.add_outcomes(extents, news, True)

    def end(self) -> None:
        """Of what was never timed nothing is left; why others could not be built is told."""
        known = {one: self.kernels.facts(one) for one in self.candidates}
        self.found.failures |= {one: how for one, how in known.items() if isinstance(how, Failure)}
        self.found.libraries = {one: of for one, of in self.found.libraries.items() if one in self.found.seconds}


def _from_above(checked: Sequence[Extents]) -> list[Extents]:
    return sorted(checked, key=lambda at: (-math.prod(at), at))


def _reaches(extents: Extents, origin: Extents) -> bool:
    return all(one <= _REACH * other and other <= _REACH * one for one, other in zip(extents, origin, strict=True))


def _least_above(seconds: Mapping[Extents, float], extents: Extents) -> float | None:
    """Seconds that an instance of no fewer rows took."""
    return min((of for at, of in seconds.items() if _is_below(extents, at)), default=None)
