"""Which of the measured kernels an artifact ships: few, near the best everywhere, their weights within the limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from subtune.core.candidate import Candidate
from subtune.core.dispatch import Extents, Leaf, Tree
from subtune.core.domain import Domain
from subtune.core.measurement import Failure
from subtune.core.workload import Arg, dtype_bits
from subtune.dynamic import tree as trees
from subtune.dynamic.dispatcher import dispatcher
from subtune.dynamic.layouts import Layouts, taken, worthwhile
from subtune.dynamic.measured import Measured
from subtune.dynamic.predict import instances_of, sampled, times_of
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure.messages import Library

MOST_LAYOUTS = 4
"""Of one workload's weights."""
_FORESEEN = 0.5
"""Of the regret that is allowed: between the instances that are measured, times are told to a few percent."""


@dataclass(frozen=True)
class Chosen:
    """A workload's kernels, and the tree that chooses among them; `seconds` at the instances that were measured.

    `expected_s` at all instances, by the kernels that the tree chooses.
    """

    workload: DynamicWorkload
    candidates: tuple[Candidate, ...]
    tree: Tree
    seconds: Mapping[Candidate, Mapping[Extents, float]]
    failures: Mapping[Candidate, Failure]
    worst_regret: float = 0.0
    expected_s: Mapping[Extents, float] = field(default_factory=dict)

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
    shapes = sampled(domain)
    weights = np.array([weight for _, weight in shapes])
    seen = {name: _Times(one, domain, [values for values, _ in shapes]) for name, one in tuned.items()}
    options = {name: times.options() for name, times in seen.items()}
    best = {name: times.best_s for name, times in seen.items()}
    own = sum(one.uses * one.weights_bytes(domain) for one in tuned.values())
    kept = taken(options, best, weights / weights.sum(), regret, own + spare_bytes)
    return {name: times.chosen(kept[name].members, regret, max_kernels) for name, times in seen.items()}


class _Times:
    """A workload's kernels at every instance of the domain."""

    def __init__(self, tuned: Tuned, domain: Domain, shapes: Sequence[Mapping[str, int]]) -> None:
        self._workload, self._found, self._uses = tuned.workload, tuned.found, tuned.uses
        self._instances, weights = instances_of(tuned.workload, domain)
        self._weights = weights / weights.sum()
        self._seconds = {one: times_of(tuned.found, one, self._instances) for one in tuned.found.libraries}
        self._best: np.ndarray = np.min(list(self._seconds.values()), axis=0)
        self._args = tuned.args(domain)
        places = {at: i for i, at in enumerate(self._instances)}
        self._of_shapes = np.array([places[tuned.workload.extents_at(values)] for values in shapes])

    @property
    def best_s(self) -> np.ndarray:
        """Of all calls, at each of the shapes, by the fastest of all kernels."""
        return self._of_calls(self._best)

    def options(self) -> list[Layouts]:
        """Those with a kernel that serves all instances: it may be the only one that is allowed."""
        groups: dict[object, list[Candidate]] = {}
        for candidate, library in self._found.libraries.items():
            groups.setdefault(library.packings, []).append(candidate)
        found = []
        for count in range(1, min(MOST_LAYOUTS, len(groups)) + 1):
            for some in itertools.combinations(groups.values(), count):
                members = tuple(itertools.chain.from_iterable(some))
                seconds = np.array([self._seconds[one] for one in members])
                if np.isfinite(seconds).all(axis=1).any():
                    nbytes = self._nbytes([self._found.libraries[of[0]] for of in some])
                    found.append(Layouts(members, self._of_calls(seconds.min(axis=0)), self._uses * nbytes))
        return worthwhile(found)

    def _of_calls(self, seconds: np.ndarray) -> np.ndarray:
        of_shapes: np.ndarray = self._uses * seconds[self._of_shapes]
        return of_shapes

    def chosen(self, members: Sequence[Candidate], regret: float, max_kernels: int) -> Chosen:
        found, workload = self._found, self._workload
        times = np.array([self._seconds[one] for one in members])
        seconds = {one: found.seconds[one] for one in members}
        if not workload.extents or len(members) == 1 or max_kernels == 1:
            first = int((times * self._weights).sum(axis=1).argmin())
            of_all = self._of_all(times[first])
            return Chosen(workload, (members[first],), Leaf(0), seconds, found.failures, *of_all)
        extents = np.array(self._instances).reshape(len(self._instances), len(workload.extents))
        bound = _FORESEEN * regret
        result = dispatcher(times, extents, self._weights, bound, max_kernels, mean_eps=bound / 4)
        used = sorted(result.kernels)
        taken_s = times[trees.chosen(result.tree, extents), np.arange(len(extents))]
        tree = trees.renumbered(result.tree, {kernel: i for i, kernel in enumerate(used)})
        of_all = self._of_all(taken_s)
        return Chosen(workload, tuple(members[k] for k in used), tree, seconds, found.failures, *of_all)

    def _of_all(self, seconds: np.ndarray) -> tuple[float, dict[Extents, float]]:
        """How much longer than the fastest of all kernels, in whatever layouts, at the worst instance; and the seconds
        at each."""
        regret = float((seconds / self._best).max()) - 1
        return regret, dict(zip(self._instances, map(float, seconds), strict=True))

    def _nbytes(self, libraries: Sequence[Library]) -> int:
        """Of the weights in all layouts in which kernels take them."""
        args = self._args
        forms = {
            (i, dict(library.packings).get(i)) for library in libraries for i, arg in enumerate(args) if arg.is_constant
        }
        return sum(
            math.prod(form.shape) * dtype_bits(args[i].dtype) // 8 if form else args[i].nbytes for i, form in forms
        )
