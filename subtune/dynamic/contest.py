"""Which alternatives to a partition are the fastest: foreseen where that is clear, else measured, at both ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

        What is the fastest at the greatest instance, and was not foreseen, has to be so at the least one, too.
        """
        found, measured = self._decided(greatest, others, device)
        won = [name for name in measured if found[name]]
        if won and not self.is_interrupted:
            small = least()
            of_small = small.alternatives()
            same = tuple(one for one in of_small.regions if one.name in won)
            at_least, _ = self._decided(small, replace(of_small, regions=same), device)
            found |= {name: found[name] if at_least.get(name) == found[name] else 0 for name in won}
        return found

    def _decided(
        self, prepared: Prepared, others: Alternatives, device: Device
    ) -> tuple[dict[str, int], Mapping[str, int]]:
        """Of one instance; and that part of it that was measured."""
        planned = plan(prepared.subgraphs, others, device, self._database)
        between_s = planned.prospects.between_s
        found = {one.name: fastest_foreseen(one, planned.expected, between_s) for one in others.regions}
        left = [one for one in others.regions if not found[one.name] and is_in_doubt(one, planned.expected, between_s)]
        if not left:
            return found, {}
        measured = self._measured(planned, replace(others, regions=tuple(left)), device)
        return {**found, **measured}, measured

    def _measured(self, planned: Plan, doubtful: Alternatives, device: Device) -> dict[str, int]:
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
