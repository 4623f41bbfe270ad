"""Joint tuning: a few instances of every dynamic subgraph are tuned as static workloads, and what wins there serves all.

A candidate's tile does not depend on the shape (DietCode's micro-kernel), so a kernel that was measured at some
instances has a predictable time at the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import Leaf, Split, Tree
from subtune.core.domain import Domain
from subtune.core.kernel import ConstantTransform
from subtune.core.measurement import Failure, Timing
from subtune.core.workload import Workload
from subtune.database import Database
from subtune.dynamic.choose import Extents, Pool
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import Measurer
from subtune.tuning.search import Search, Single, tune

_MOST_INSTANCES = 4096
_STEP = 2.0
"""Measured instances are so many times as large as the ones before."""

Progress = Callable[[object], None]
Packings = tuple[tuple[int, ConstantTransform], ...]


@dataclass(frozen=True)
class Chosen:
    """A workload's kernels, and the tree that chooses among them."""

    pool: Pool
    candidates: tuple[Candidate, ...]
    tree: Tree
    packings: Packings


def tuned(
    workloads: Mapping[str, DynamicWorkload],
    exact_only: frozenset[str],
    domain: Domain,
    device: Device,
    search: Search,
    database: Database,
    measurer: Measurer | None,
    progress: Progress | None,
) -> dict[str, Chosen]:
    """Kernels for every subgraph, by name.

    Args:
        exact_only: those that may not compute rows past the last one.
    """
    probes = {name: _probes(one, domain) for name, one in workloads.items()}
    static = {(name, at): workloads[name].at(at) for name, ats in probes.items() for at in ats}
    tune([Single(one) for one in static.values()], device, search, database=database, measurer=measurer,
         progress=progress)  # fmt: skip
    pools = {name: Pool(one, device, name in exact_only) for name, one in workloads.items()}
    for (name, at), workload in static.items():
        pools[name].add(at, _outcomes(workload, device, database))
    _across(pools, static, device, search, database, measurer, progress)
    return {name: _chosen(pools[name], probes[name], domain) for name in workloads}


def _across(
    pools: Mapping[str, Pool],
    static: Mapping[tuple[str, Extents], Workload],
    device: Device,
    search: Search,
    database: Database,
    measurer: Measurer | None,
    progress: Progress | None,
) -> None:
    """What won at one instance is measured at the others."""
    wanted: dict[str, list[Candidate]] = {}
    for (name, at), workload in static.items():
        pool = pools[name]
        missing = [one for one in pool.kernels if one != DEFAULT and at not in pool.seconds.get(one, {})]
        if missing:
            wanted.setdefault(workload.key, []).extend(missing)

    def policy(workload: Workload, _device: Device, topk: int) -> Sequence[Candidate]:
        return tuple(dict.fromkeys(wanted[workload.key]))

    again = [Single(one) for one in static.values() if one.key in wanted]
    most = max(map(len, wanted.values()), default=0)
    if again:
        more = Search(max(most, search.topk) + 1, search.budget_s, policy)
        tune(again, device, more, database=database, measurer=measurer, progress=progress)
    for (name, at), workload in static.items():
        for candidate, outcome in _outcomes(workload, device, database).items():
            if isinstance(outcome, Timing):
                pools[name].seconds.setdefault(candidate, {})[at] = outcome.median_s


def _outcomes(workload: Workload, device: Device, database: Database) -> dict[Candidate, Timing | Failure]:
    found = dict(database.outcomes(workload, device.scope()))
    record = database.lookup(workload, device.scope())
    if record is not None:
        found[record.candidate] = record.timing
    return found


def _probes(workload: DynamicWorkload, domain: Domain) -> list[Extents]:
    """Instances that are measured: a geometric series of each symbol's values, one symbol at a time from the greatest
    down, and the others at their greatest and least."""
    points: dict[Extents, None] = {}
    for symbol in domain.symbols:
        others = [{o.name: o.values[end] for o in domain.symbols} for end in (-1, 0)]
        value = float(symbol.values[-1])
        series = set()
        while value >= symbol.values[0]:
            series.add(min(symbol.values, key=lambda one: abs(one - value)))
            value /= _STEP
        series.add(symbol.values[0])
        for value_of in sorted(series):
            for other in others:
                points[workload.extents_at({**other, symbol.name: value_of})] = None
    return list(points)


def _instances(workload: DynamicWorkload, domain: Domain) -> tuple[list[Extents], np.ndarray]:
    """Distinct extents of the domain and their weights; of a large domain, of every so manieth instance."""
    step = max(1, math.ceil(domain.size / _MOST_INSTANCES))
    weights: dict[Extents, float] = {}
    for i, (values, weight) in enumerate(domain.instances()):
        if i % step == 0 or i == domain.size - 1:
            at = workload.extents_at(values)
            weights[at] = weights.get(at, 0.0) + weight
    ordered = sorted(weights)
    return ordered, np.array([weights[at] for at in ordered])


def _chosen(pool: Pool, probes: Sequence[Extents], domain: Domain) -> Chosen:
    pool.fall_back(max(probes, key=math.prod))
    assert pool.kernels, f"no schedule serves all instances: {pool.refused}"
    instances, weights = _instances(pool.workload, domain)
    groups: dict[Packings, list[Candidate]] = {}
    for candidate, kernel in pool.kernels.items():
        groups.setdefault(kernel.packings, []).append(candidate)
    best: tuple[float, Packings, np.ndarray] | None = None
    for packings, members in groups.items():
        times = np.array([pool.predicted(one, instances) for one in members])
        total = float((times.min(axis=0) * weights).sum())
        if best is None or total < best[0]:
            best = (total, packings, times)
    assert best is not None
    _, packings, times = best
    members = groups[packings]
    if not np.isfinite(times).all(axis=1).any():
        return Chosen(pool, (members[0],), Leaf(0), packings)
    winner = times.argmin(axis=0)
    if len(pool.workload.extents) != 1:
        index = int((times * weights).sum(axis=1).argmin())
        return Chosen(pool, (members[index],), Leaf(0), packings)
    used = sorted({int(k) for k in winner})
    runs: list[tuple[int, int]] = []
    for at, k in zip(instances, winner, strict=True):
        if runs and runs[-1][1] == used.index(int(k)):
            runs[-1] = (at[0], runs[-1][1])
        else:
            runs.append((at[0], used.index(int(k))))
    return Chosen(pool, tuple(members[k] for k in used), _tree(runs), packings)


def _tree(runs: Sequence[tuple[int, int]]) -> Tree:
    """A balanced tree over intervals: (last extent, kernel) of each."""
    if len(runs) == 1:
        return Leaf(runs[0][1])
    middle = len(runs) // 2
    return Split(0, runs[middle - 1][0], _tree(runs[:middle]), _tree(runs[middle:]))
