"""Which of the measured kernels an artifact ships: few, near the best everywhere, and their weights within the limit.

Kernels of one workload may want its weights in different layouts. Each layout is kept beside the others, so it has to
save time for the bytes that it takes: of all workloads' layouts those come first that save most seconds for a byte.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from subtune.core.candidate import Candidate
from subtune.core.dispatch import Leaf, Split, Tree
from subtune.core.domain import Domain
from subtune.core.measurement import Failure
from subtune.core.workload import Arg, dtype_bits
from subtune.dynamic.dispatcher import dispatcher
from subtune.dynamic.kernel import tiles_of
from subtune.dynamic.measure import Extents, Measured
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure.messages import Library

_MOST_INSTANCES = 4096
"""Of a domain that are looked at."""
_MOST_LAYOUTS = 3
"""Of one workload's weights."""
_WORTH = 0.01
"""Of a workload's time: what another layout has to save."""


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


@dataclass(frozen=True)
class Tuned:
    """A workload's kernels as they were measured, and how often the model calls it."""

    workload: DynamicWorkload
    found: Measured
    uses: int

    def args(self, domain: Domain) -> tuple[Arg, ...]:
        """Of the greatest instance."""
        return self.workload.at(self.workload.extents_at(domain.greatest)).args

    def weights_bytes(self, domain: Domain) -> int:
        """Of one call, as they are in the model."""
        return sum(arg.nbytes for arg in self.args(domain) if arg.is_constant)


@dataclass(frozen=True, slots=True)
class _Layouts:
    """Kernels that take a workload's weights in some layouts: their weighted mean seconds, and the weights' bytes."""

    members: tuple[Candidate, ...]
    mean_s: float
    nbytes: int


def chosen(
    tuned: Mapping[str, Tuned], domain: Domain, regret: float, max_kernels: int, spare_bytes: float
) -> dict[str, Chosen]:
    """The kernels of every workload, by name.

    Args:
        regret: how much longer than the fastest of a workload's kernels the chosen one may take at any instance.
        max_kernels: of one workload.
        spare_bytes: that all packed weights may take beyond what the model's own do. What has no smaller layout exceeds
            it.
    """
    seen = {name: _Times(one, domain) for name, one in tuned.items()}
    options = {name: times.options() for name, times in seen.items()}
    taken = dict.fromkeys(options, 0)
    spare = spare_bytes - sum(
        tuned[name].uses * (of[0].nbytes - tuned[name].weights_bytes(domain)) for name, of in options.items()
    )
    while step := _best_step(options, taken, tuned, spare):
        name, at = step
        spare -= tuned[name].uses * (options[name][at].nbytes - options[name][taken[name]].nbytes)
        taken[name] = at
    return {name: seen[name].chosen(options[name][at].members, regret, max_kernels) for name, at in taken.items()}


def _best_step(
    options: Mapping[str, Sequence[_Layouts]], taken: Mapping[str, int], tuned: Mapping[str, Tuned], spare: float
) -> tuple[str, int] | None:
    """A workload's further option that fits, and saves most seconds for a byte."""
    best: tuple[float, str, int] | None = None
    for name, of in options.items():
        now = of[taken[name]]
        for at in range(taken[name] + 1, len(of)):
            more = of[at].nbytes - now.nbytes
            if tuned[name].uses * more <= max(spare, 0) or more <= 0:
                worth = (now.mean_s - of[at].mean_s) / max(more, 1)
                best = max(best, (worth, name, at)) if best else (worth, name, at)
    return best[1:] if best else None


class _Times:
    """A workload's kernels at every instance of the domain."""

    def __init__(self, tuned: Tuned, domain: Domain) -> None:
        self._workload, self._found = tuned.workload, tuned.found
        self._instances, weights = _instances(tuned.workload, domain)
        self._weights = weights / weights.sum()
        self._seconds = {one: _times(tuned.found, one, self._instances) for one in tuned.found.libraries}
        self._args = tuned.args(domain)

    def options(self) -> list[_Layouts]:
        """From the fewest bytes on, each worth what it takes."""
        groups: dict[object, list[Candidate]] = {}
        for candidate, library in self._found.libraries.items():
            groups.setdefault(library.packings, []).append(candidate)
        found = []
        for count in range(1, min(_MOST_LAYOUTS, len(groups)) + 1):
            for some in itertools.combinations(groups.values(), count):
                members = tuple(itertools.chain.from_iterable(some))
                nbytes = self._nbytes([self._found.libraries[of[0]] for of in some])
                found.append(_Layouts(members, self._mean_s(members), nbytes))
        ordered = sorted((one for one in found if math.isfinite(one.mean_s)), key=lambda one: (one.nbytes, one.mean_s))
        kept = ordered[:1]
        for one in ordered[1:]:
            if one.mean_s < kept[-1].mean_s * (1 - _WORTH):
                kept.append(one)
        return kept

    def chosen(self, members: Sequence[Candidate], regret: float, max_kernels: int) -> Chosen:
        found, workload = self._found, self._workload
        times = np.array([self._seconds[one] for one in members])
        seconds = {one: found.seconds[one] for one in members}
        if not workload.extents or len(members) == 1 or max_kernels == 1:
            first = int((times * self._weights).sum(axis=1).argmin())
            return Chosen(workload, (members[first],), Leaf(0), seconds, found.failures)
        extents = np.array(self._instances).reshape(len(self._instances), len(workload.extents))
        result = dispatcher(times, extents, self._weights, regret, max_kernels, mean_eps=regret / 4)
        used = sorted(result.kernels)
        tree = _renumbered(result.tree, {kernel: i for i, kernel in enumerate(used)})
        return Chosen(workload, tuple(members[k] for k in used), tree, seconds, found.failures, result.worst_regret)

    def _nbytes(self, libraries: Sequence[Library]) -> int:
        """Of the weights in all layouts in which kernels take them."""
        args = self._args
        forms = {
            (i, dict(library.packings).get(i)) for library in libraries for i, arg in enumerate(args) if arg.is_constant
        }
        return sum(
            math.prod(form.shape) * dtype_bits(args[i].dtype) // 8 if form else args[i].nbytes for i, form in forms
        )

    def _mean_s(self, members: Sequence[Candidate]) -> float:
        best: np.ndarray = np.min([self._seconds[one] for one in members], axis=0)
        return float((best * self._weights).sum())


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
    return float(math.prod(max(1, t * g) for t, g in zip(whole, library.granules, strict=True)))
