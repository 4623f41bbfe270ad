"""The subgraphs of several models as one list of work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from subtune.backends.base import Device
from subtune.database import Database
from subtune.fleet.described import Fleet, FleetModel
from subtune.options import Options
from subtune.pipeline import prepare
from subtune.tuning.alternatives import Plan, plan
from subtune.tuning.job import Single
from subtune.tuning.prospects import Seen


@dataclass(frozen=True, slots=True)
class Pool:
    """Of models whose kernels find their data alike, so that measurements of one hold for the others."""

    device: Device
    models: tuple[FleetModel, ...]
    plans: tuple[Plan, ...]

    def part(self, name: str) -> list[Single]:
        """`first`, `rivals` or `later` of all plans; a model's own priority is in the uses."""
        return [
            replace(one, uses=one.uses * model.priority)
            for model, planned in zip(self.models, self.plans, strict=True)
            for one in getattr(planned, name)
        ]

    def worth(self, seen: Seen) -> Set[str]:
        """What is worth time for any of the models."""
        return frozenset().union(*(planned.prospects.worth_tuning(seen) for planned in self.plans))

    @property
    def users(self) -> Counter[str]:
        """How many of the models have a workload in their first choice, by its key."""
        return Counter(key for planned in self.plans for key in {one.workload.key for one in planned.first})

    def known(self, database: Database, topk: int) -> int:
        """How many of these workloads have been tuned to the end before."""
        firsts = {one.workload.key: one.workload for one in self.part("first")}
        records = [database.lookup(workload, self.device.scope()) for workload in firsts.values()]
        return sum(record is not None and record.complete and record.topk >= topk for record in records)


def pooled(fleet: Fleet, device: Device, options: Options, database: Database) -> list[Pool]:
    """All models of the fleet, prepared for `device`; in one pool, unless they use its memory in other ways."""
    found: dict[str, list[tuple[Device, FleetModel, Plan]]] = {}
    for model in fleet.models:
        forms = device.backend.forms(device.model)
        prepared = prepare(model.path, model.shapes, options.numerics, None, None, forms)
        own = device.for_working_set(prepared.working_set_bytes)
        planned = plan(prepared.subgraphs, prepared.alternatives(), own, database)
        found.setdefault(own.scope().device, []).append((own, model, planned))
    return [_pool(members) for members in found.values()]


def _pool(members: Sequence[tuple[Device, FleetModel, Plan]]) -> Pool:
    devices, models, plans = zip(*members, strict=True)
    return Pool(devices[0], models, plans)
