"""What joint tuning works with: worker processes, what was measured before, and who is told where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from subtune.backends.base import Device
from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents
from subtune.core.measurement import Failure
from subtune.core.saved import from_plain, to_plain
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.database.instances import Instances, Known, Outcome
from subtune.dynamic.working_set import DeviceAt
from subtune.measure import LocalMeasurer
from subtune.measure.messages import Library
from subtune.measure.session import LocalSession

Tell = Callable[[int, int, float], None]
"""Told after every step: candidates done, of how many, and the fastest kernel's seconds at the greatest instance."""
_OF_A_FILE = ("path", "build_s", "numbers", "rows_past_end")
"""Fields of a library that say nothing of its kernel."""


@dataclass(frozen=True)
class Workbench:
    """`measurer` builds, checks and times; without a `database` nothing is remembered.

    With `is_recall` nothing is measured: a candidate counts of which all is remembered that is asked.

    Attributes:
        most: kernels that nobody has built yet for which there is time.
    """

    measurer: LocalMeasurer
    database: Database | None = None
    tell: Tell = lambda done, total, best_s: None
    is_recall: bool = False
    most: float = math.inf

    @contextmanager
    def session(self, workload: Workload, device: Device, **more: Any) -> Iterator[LocalSession]:
        """As `LocalMeasurer.session`."""
        with self.measurer.session(workload, device, **more) as session:
            yield session

    def memory(self, workload: Workload, device: Device, at: DeviceAt | None = None) -> Memory:
        """Of a workload's kernels; of its instances as `at` has the device there, or as it is."""
        return Memory(_Kept(self.database, workload, device, at) if self.database else None)


_State = tuple[Instances, Mapping[Candidate, Mapping[Extents, Outcome]]]
"""In which instances find the device: where its outcomes are kept, and those that are."""


class _Kept:
    """Of one workload in a database: builds as of `device`, outcomes as of the state in which an instance finds it."""

    def __init__(self, database: Database, workload: Workload, device: Device, at: DeviceAt | None) -> None:
        self._database, self._workload = database, workload
        self._at: DeviceAt = at or (lambda extents: device)
        scope = device.scope()
        self.builds = Instances(database, workload, scope)
        self.known = self.builds.known()
        own = {one: known.outcomes for one, known in self.known.items()}
        self._states: dict[str, _State] = {scope.device: (self.builds, own)}
        self._at_instances: dict[Extents, _State] = {}

    def outcomes(self, extents: Extents) -> Mapping[Candidate, Mapping[Extents, Outcome]]:
        return self._state(extents)[1]

    def add_outcomes(self, extents: Extents, outcomes: Mapping[Candidate, Outcome]) -> None:
        self._state(extents)[0].add_outcomes(extents, outcomes)

    def _state(self, extents: Extents) -> _State:
        if extents not in self._at_instances:  # what a device is called takes longer to be found than an outcome
            scope = self._at(extents).scope()
            if scope.device not in self._states:
                instances = Instances(self._database, self._workload, scope)
                self._states[scope.device] = instances, instances.outcomes()
            self._at_instances[extents] = self._states[scope.device]
        return self._at_instances[extents]


class Memory:
    """What is remembered of one dynamic workload, and what is added."""

    def __init__(self, kept: _Kept | None) -> None:
        self._kept = kept
        self._known: Mapping[Candidate, Known] = kept.known if kept else {}

    @property
    def has_times(self) -> bool:
        """Whether something was timed."""
        return any(outcome.is_timed for known in self._known.values() for outcome in known.outcomes.values())

    def built(self, candidate: Candidate) -> Library | Failure | None:
        """How its build ended: a library without a file. None where that is not known."""
        known = self._known.get(candidate)
        if known is None:
            return None
        if isinstance(known.built, Failure):
            return known.built
        try:
            facts = {name: from_plain(value) for name, value in known.built.items()}
            return Library(path="", build_s=0.0, **facts)
        except (TypeError, ValueError):  # a later or an earlier subtune wrote it
            return None

    def outcome(self, candidate: Candidate, extents: Extents, is_timed: bool) -> float | Failure | None:
        """Seconds at an instance, or why it is not served; None where that, or a time, is not known."""
        if self._kept is None or candidate not in self._known:
            return None
        found = self._kept.outcomes(extents).get(candidate, {}).get(extents)
        if found is None or (is_timed and not found.is_timed and not isinstance(found.result, Failure)):
            return None
        return found.result

    def is_whole(self, candidate: Candidate, instances: Sequence[tuple[Extents, bool]]) -> bool:
        """Whether all is known that measuring at `instances`, in this order, would tell; with whether to time there."""
        built = self.built(candidate)
        if built is None or isinstance(built, Failure):
            return built is not None
        for extents, is_timed in instances:
            found = self.outcome(candidate, extents, is_timed)
            if found is None or isinstance(found, Failure):
                return found is not None
        return True

    def add_builds(self, builds: Mapping[Candidate, Library | Failure]) -> None:
        if self._kept:
            plain = {one: how if isinstance(how, Failure) else _plain(how) for one, how in builds.items()}
            self._kept.builds.add_builds({one: how for one, how in plain.items() if how is not None})

    def add_outcomes(self, extents: Extents, results: Mapping[Candidate, float | Failure], is_timed: bool) -> None:
        if self._kept:
            self._kept.add_outcomes(extents, {one: Outcome(of, is_timed) for one, of in results.items()})


def _plain(library: Library) -> dict[str, Any] | None:
    """What must be known of a library's kernel, as JSON holds it; None where that is not possible."""
    try:
        return {one.name: to_plain(getattr(library, one.name)) for one in fields(library) if one.name not in _OF_A_FILE}
    except TypeError:
        return None
