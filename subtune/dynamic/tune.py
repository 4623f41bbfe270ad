"""Joint tuning of a dynamic workload: kernels for any instance, measured at a few, and a tree that chooses among them.

A candidate's tile does not depend on the shape (DietCode's micro-kernel): what the policy proposes for some instances
is generalised to all, built once, and measured at several. Between those its time can be told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from subtune import backends
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.dispatch import Leaf, Split, Tree
from subtune.core.domain import Domain
from subtune.core.errors import SubtuneError
from subtune.core.measurement import Failure
from subtune.dynamic.dispatcher import dispatcher
from subtune.dynamic.kernel import MIXING, PLAIN, tiles_of
from subtune.dynamic.measure import Extents, Measured, measured
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure import LocalMeasurer
from subtune.measure.messages import Library

_MOST_INSTANCES = 4096
"""Of a domain that are looked at."""
_STEP = 1.6
"""A symbol's value at a measured instance over that at the one before; no power of it is one of 2, so that tiles of all
heights are proposed."""
_MOST_KERNELS = 24
"""Built of one workload."""
_MANY, _FEW = 8, 3
"""Instances that a workload is measured at; the second is of one that has little weight."""
_CHECKS = 5
"""Instances at which kernels are checked besides."""

_EVERY = (DEFAULT, PLAIN)


@dataclass(frozen=True)
class Effort:
    """What joint tuning may do."""

    topk: int
    """Candidates for each measured instance."""
    regret: float
    """How much longer than the fastest of all kernels the chosen one may take at any instance."""
    max_kernels: int


@dataclass(frozen=True)
class Chosen:
    """A workload's kernels, and the tree that chooses among them; `seconds` at the instances that were measured."""

    workload: DynamicWorkload
    candidates: tuple[Candidate, ...]
    tree: Tree
    seconds: Mapping[Candidate, Mapping[Extents, float]]
    failures: Mapping[Candidate, Failure]
    worst_regret: float = 0.0

    @property
    def best_s(self) -> dict[Extents, float]:
        """The fastest kernel's seconds at each measured instance."""
        best: dict[Extents, float] = {}
        for of in self.seconds.values():
            for at, seconds in of.items():
                best[at] = min(seconds, best.get(at, math.inf))
        return best


def tuned(
    workload: DynamicWorkload,
    domain: Domain,
    exact_only: bool,
    is_heavy: bool,
    effort: Effort,
    device: Device,
    measurer: LocalMeasurer,
) -> Chosen:
    """Kernels for every instance of `domain`.

    Args:
        exact_only: the kernels may not compute rows past the last one.
        is_heavy: the workload counts in the model's time.

    Raises:
        SubtuneError: no schedule serves all instances.
    """
    probes = _probes(workload, domain)
    proposals = _proposals(workload, probes, device, effort.topk if is_heavy else _FEW)
    probes = _spread(probes, _MANY if is_heavy else _FEW)
    checks = _between(workload, domain, probes, _CHECKS if is_heavy else 2)
    found = _first_that_serves(((*proposals, DEFAULT), _EVERY), workload, probes, checks, exact_only, device, measurer)
    return _chosen(workload, found, domain, effort)


def untuned(
    workload: DynamicWorkload, domain: Domain, exact_only: bool, device: Device, measurer: LocalMeasurer
) -> Chosen:
    """The first kernel that the policy proposes for the greatest instance, checked there and at the least.

    Raises:
        SubtuneError: no schedule serves all instances.
    """
    probes = _probes(workload, domain)
    ends, checks = _spread(probes, 2), _between(workload, domain, probes, 2)
    first = _proposals(workload, [workload.extents_at(domain.greatest)], device, 1)
    found = _first_that_serves((first, _EVERY), workload, ends, checks, exact_only, device, measurer, is_timed=False)
    return _chosen(workload, found, domain, Effort(1, math.inf, 1))


def _first_that_serves(
    choices: Sequence[Sequence[Candidate]],
    workload: DynamicWorkload,
    instances: Sequence[Extents],
    checks: Sequence[Extents],
    exact_only: bool,
    device: Device,
    measurer: LocalMeasurer,
    is_timed: bool = True,
) -> Measured:
    """Those of the first of `choices` of which some serves all `instances`, and `checks`.

    Raises:
        SubtuneError: of none.
    """
    failures: dict[Candidate, Failure] = {}
    for candidates in filter(None, choices):
        found = measured(workload, candidates, instances, checks, exact_only, device, measurer, is_timed)
        if any(one not in found.failures for one in found.libraries):
            return found
        failures |= found.failures
    reasons = "; ".join(f"{one}: {failure.message}" for one, failure in list(failures.items())[-2:])
    raise SubtuneError(f"no schedule serves all instances of a subgraph: {reasons}")


def _proposals(
    workload: DynamicWorkload, probes: Sequence[Extents], device: Device, topk: int
) -> tuple[Candidate, ...]:
    """The policy's candidates for the probes, the first ones of all before the second ones."""
    ranked = []
    for extents in probes:
        try:
            ranked.append(backends.candidates(workload.at(extents), device, topk))
        except Exception:  # a policy may not foresee an axis of one element
            continue
    longest = max(map(len, ranked), default=0)
    turns = [one[i] for i in range(longest) for one in ranked if i < len(one) and one[i].family not in MIXING]
    both = [kind for candidate in turns for kind in (candidate, _plainer(candidate))]
    return tuple(dict.fromkeys(both))[:_MOST_KERNELS]


def _plainer(candidate: Candidate) -> Candidate:
    """The same tile without what is done beside: prefetches are shared out among so many tiles as there are."""
    kept = tuple((name, value) for name, value in candidate.knobs if value is not True)
    return Candidate(candidate.family, kept, candidate.predicted_s)


def _probes(workload: DynamicWorkload, domain: Domain) -> list[Extents]:
    """Instances that are measured: a geometric series of each symbol's values, the others at their least and greatest;
    in the order of their work."""
    points: dict[Extents, None] = {}
    for symbol in domain.symbols:
        series = {symbol.values[0], symbol.values[-1]}
        value = symbol.values[-1] / _STEP
        while value > symbol.values[0]:
            series.add(min(symbol.values, key=lambda one: abs(one - value)))  # called at once
            value /= _STEP
        for end in (-1, 0):
            others = {one.name: one.values[end] for one in domain.symbols}
            for value_of in sorted(series):
                points[workload.extents_at({**others, symbol.name: value_of})] = None
    if not domain.symbols:
        points[workload.extents_at({})] = None
    return sorted(points, key=lambda at: (math.prod(at), at))


def _between(workload: DynamicWorkload, domain: Domain, probes: Sequence[Extents], count: int) -> tuple[Extents, ...]:
    """Instances of other remainders than those that are measured: next to the least and the greatest, and between."""
    shares = (0.04, 0.99, 0.015, 0.25, 0.6)[:count]
    points = [{one.name: one.values[int(share * (len(one.values) - 1))] for one in domain.symbols} for share in shares]
    return tuple(at for at in dict.fromkeys(map(workload.extents_at, points)) if at not in probes)


def _spread(ordered: Sequence[Extents], count: int) -> list[Extents]:
    """The first, the last, and some between."""
    if len(ordered) <= count:
        return list(ordered)
    return [ordered[round(i * (len(ordered) - 1) / (count - 1))] for i in range(count)]


def _chosen(workload: DynamicWorkload, found: Measured, domain: Domain, effort: Effort) -> Chosen:
    instances, weights = _instances(workload, domain)
    extents = np.array(instances).reshape(len(instances), len(workload.extents))
    groups: dict[object, list[Candidate]] = {}
    for candidate, library in found.libraries.items():
        groups.setdefault(library.packings, []).append(candidate)
    best: tuple[float, list[Candidate], np.ndarray] | None = None
    for members in groups.values():
        times = np.array([_times(found, one, instances) for one in members])
        total = float((times.min(axis=0) * weights).sum())
        if best is None or total < best[0]:
            best = (total, members, times)
    assert best is not None
    _, members, times = best
    seconds = {one: found.seconds[one] for one in members}
    if not workload.extents or len(members) == 1 or effort.max_kernels == 1:
        first = int((times * weights).sum(axis=1).argmin())
        return Chosen(workload, (members[first],), Leaf(0), seconds, found.failures)
    result = dispatcher(times, extents, weights, effort.regret, effort.max_kernels, mean_eps=effort.regret / 4)
    used = sorted(result.kernels)
    tree = _renumbered(result.tree, {kernel: i for i, kernel in enumerate(used)})
    return Chosen(workload, tuple(members[k] for k in used), tree, seconds, found.failures, result.worst_regret)


def _times(found: Measured, candidate: Candidate, instances: Sequence[Extents]) -> np.ndarray:
    """Seconds at each instance; infinite where the kernel does not serve it."""
    times = predicted(found.libraries[candidate], found.seconds[candidate], instances)
    return np.where([found.serves(candidate, extents) for extents in instances], times, math.inf)


def _renumbered(tree: Tree, numbers: Mapping[int, int]) -> Tree:
    if isinstance(tree, Leaf):
        return Leaf(numbers[tree.kernel])
    return Split(tree.extent, tree.at_most, _renumbered(tree.low, numbers), _renumbered(tree.high, numbers))


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


def predicted(library: Library, known: Mapping[Extents, float], instances: Sequence[Extents]) -> np.ndarray:
    """Seconds of a kernel at each instance.

    Between measured instances the seconds for an element of work, padding included, follow the logarithm of the work.
    """
    work = np.array([_work(library, extents) for extents in instances])
    points: dict[float, list[float]] = {}
    for extents, seconds in known.items():
        points.setdefault(_work(library, extents), []).append(seconds)
    sizes = sorted(points)
    rates = [math.log(float(np.median(points[size])) / size) for size in sizes]
    rate: np.ndarray = np.interp(np.log(work), np.log(sizes), rates)
    return work * np.exp(rate)


def _work(library: Library, extents: Extents) -> float:
    whole = tiles_of(extents, library.granules)
    return float(math.prod(t * g for t, g in zip(whole, library.granules, strict=True)))
