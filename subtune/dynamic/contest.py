"""Which alternatives to a partition are the fastest: foreseen where that is clear, else measured, at both ends."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from subtune.backends.base import Device
from subtune.core.clock import Clock
from subtune.core.graph import Alternatives
from subtune.database import Database
from subtune.measure import LocalMeasurer
from subtune.options import Options
from subtune.pipeline import Prepared
from subtune.tuning.alternatives import Plan, plan
from subtune.tuning.choose import fastest_foreseen, is_in_doubt
from subtune.tuning.search import Search, Single, tune

_TOPK = 6
"""Candidates of a kernel of this instance alone: the chosen ones' are looked for again, for all instances."""
_SHARE = 0.2
"""Of a budget, at either end."""


class Contest:
    """Decides of every region of a partition which alternative is taken.

    Attributes:
        is_interrupted: Ctrl-C ended the measuring; what was not measured then is as partitioned.
    """

    def __init__(self, measurer: LocalMeasurer, database: Database, options: Options, clock: Clock) -> None:
        self._measurer, self._database, self._options, self._clock = measurer, database, options, clock
        self.is_interrupted = False

    @property
    def spent_s(self) -> float:
        return self._clock.seconds.get("tune", 0.0)

    def taken(
        self, greatest: Prepared, others: Alternatives, least: Callable[[], Prepared], device: Device
    ) -> dict[str, int]:
        """By the regions' names, the number of the alternative, 0 for the partition's own.

        What was not foreseen has to be the fastest at both ends. The least one is asked first: there measuring takes
        little, and a region that it does not have is not measured at all.
        """
        planned = self._planned(greatest, others, device)
        found, doubtful = _foreseen(planned, others)
        if not doubtful.regions:
            return found
        small = least()
        of_small = _among(small.alternatives(), {one.name for one in doubtful.regions})
        if not of_small.regions:
            return found
        planned_small = self._planned(small, of_small, device)
        at_least, doubtful_small = _foreseen(planned_small, of_small)
        at_least |= self._measured(planned_small, doubtful_small, device)
        won = {name: number for name, number in at_least.items() if number}
        at_greatest = {} if self.is_interrupted else self._measured(planned, _among(doubtful, won), device)
        return found | {name: number for name, number in at_greatest.items() if number == won[name]}

    def _planned(self, prepared: Prepared, others: Alternatives, device: Device) -> Plan:
        return plan(prepared.subgraphs, others, device, self._database)

    def _measured(self, planned: Plan, doubtful: Alternatives, device: Device) -> dict[str, int]:
        if not doubtful.regions:
            return {}
        keys = {key for one in doubtful.regions for way in one.alternatives for key in way.keys}
        budget_s = None if self._options.budget_s is None else _SHARE * self._options.budget_s
        budget_s = budget_s if self._options.tune else 0.0

        def concerned(some: tuple[Single, ...]) -> list[Single]:
            return [one for one in some if one.workload.key in keys]

        with self._clock.stage("tune"):
            records = tune(
                concerned(planned.first),
                device,
                Search(min(self._options.topk, _TOPK), budget_s),
                database=self._database,
                measurer=self._measurer,
                rivals=concerned(planned.rivals),
                later=concerned(planned.later),
                worth=replace(planned.prospects, regions=doubtful.regions).worth_tuning,
            )
        self.is_interrupted = records.interrupted
        return {name: choice.taken for choice in planned.choices(doubtful, records) for name in choice.regions}


def _foreseen(planned: Plan, others: Alternatives) -> tuple[dict[str, int], Alternatives]:
    """What is taken by what is expected, and the regions of which measuring has to say."""
    between_s = planned.prospects.between_s
    found = {one.name: fastest_foreseen(one, planned.expected, between_s) for one in others.regions}
    left = [one for one in others.regions if not found[one.name] and is_in_doubt(one, planned.expected, between_s)]
    return found, replace(others, regions=tuple(left))


def _among(alternatives: Alternatives, names: Collection[str]) -> Alternatives:
    return replace(alternatives, regions=tuple(one for one in alternatives.regions if one.name in names))
