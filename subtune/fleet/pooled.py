"""The subgraphs of several models as one list of work."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from subtune.backends.base import Device
from subtune.core.progress import ProgressCallback
from subtune.database import Database
from subtune.fleet.described import Fleet, FleetModel
from subtune.measure import Measurer
from subtune.options import Options
from subtune.pipeline import prepare
from subtune.tuning.alternatives import Plan, plan
from subtune.tuning.job import Single
from subtune.tuning.proposals import Policy, policy
from subtune.tuning.prospects import Seen
from subtune.tuning.records import Records
from subtune.tuning.search import Search, tune
from subtune.tuning.threads import MACHINE, Threads


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


def tuned(
    pools: Sequence[Pool],
    topk: int,
    deadline: float,
    database: Database,
    measurer: Measurer | None,
    progress: ProgressCallback | None = None,
    candidates: Policy = policy,
    threads: Threads = MACHINE,
) -> list[Records]:
    """One after the other; each has the share of the time until `deadline` (`time.monotonic()`; infinity: no end) that
    its models are of those that are left. The last two arguments are as those of a search."""
    found: list[Records] = []
    for number, pool in enumerate(pools):
        share = len(pool.models) / sum(len(one.models) for one in pools[number:])
        budget_s = None if math.isinf(deadline) else max(0.0, share * (deadline - time.monotonic()))
        records = tune(
            pool.part("first"),
            pool.device,
            Search(topk, budget_s, candidates),
            database=database,
            measurer=measurer,
            progress=progress,
            rivals=pool.part("rivals"),
            later=pool.part("later"),
            worth=pool.worth,
            threads=threads,
        )
        found.append(records)
        if records.interrupted:
            break
    return found
