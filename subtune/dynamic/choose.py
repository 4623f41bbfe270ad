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
from subtune.core.dispatch import Extents, Leaf, Tree
from subtune.core.domain import Domain
from subtune.core.measurement import Failure
from subtune.core.workload import Arg, dtype_bits
from subtune.dynamic.dispatcher import dispatcher
from subtune.dynamic.measure import Measured
from subtune.dynamic.predict import instances_of, times_of
from subtune.dynamic.tree import renumbered
from subtune.dynamic.workload import DynamicWorkload
from subtune.measure.messages import Library

_MOST_LAYOUTS = 3
"""Of one workload's weights."""
_WORTH = 0.01
"""Of a workload's time: what another layout has to save."""
_FORESEEN = 0.5
"""Of the regret that is allowed: between the instances that are measured, times are told to a few percent."""


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
    """Kernels that take a workload's weights in some layouts: how much longer than the fastest of all they take at the
    worst instance, their weighted mean seconds, and the weights' bytes."""

    members: tuple[Candidate, ...]
    worst_regret: float
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
    options = {name: times.options(regret) for name, times in seen.items()}
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
        self._instances, weights = instances_of(tuned.workload, domain)
        self._weights = weights / weights.sum()
        self._seconds = {one: times_of(tuned.found, one, self._instances) for one in tuned.found.libraries}
        self._best: np.ndarray = np.min(list(self._seconds.values()), axis=0)
        self._args = tuned.args(domain)

    def options(self, regret: float) -> list[_Layouts]:
        """From the fewest bytes on, each worth what it takes: it saves time, or keeps within `regret`."""
        groups: dict[object, list[Candidate]] = {}
        for candidate, library in self._found.libraries.items():
            groups.setdefault(library.packings, []).append(candidate)
        found = []
        for count in range(1, min(_MOST_LAYOUTS, len(groups)) + 1):
            for some in itertools.combinations(groups.values(), count):
                members = tuple(itertools.chain.from_iterable(some))
                nbytes = self._nbytes([self._found.libraries[of[0]] for of in some])
                found.append(_Layouts(members, *self._worth(members), nbytes))
        ordered = sorted((one for one in found if math.isfinite(one.mean_s)), key=lambda one: (one.nbytes, one.mean_s))
        kept = ordered[:1]
        for one in ordered[1:]:
            last = kept[-1]
            is_nearer = last.worst_regret > regret and one.worst_regret < last.worst_regret - _WORTH
            if one.mean_s < last.mean_s * (1 - _WORTH) or (is_nearer and one.mean_s < last.mean_s):
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
        bound = _FORESEEN * regret
        result = dispatcher(times, extents, self._weights, bound, max_kernels, mean_eps=bound / 4)
        used = sorted(result.kernels)
        tree = renumbered(result.tree, {kernel: i for i, kernel in enumerate(used)})
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

    def _worth(self, members: Sequence[Candidate]) -> tuple[float, float]:
        """The worst regret and the mean seconds; infinite where no kernel serves all instances: one may be allowed."""
        seconds = np.array([self._seconds[one] for one in members])
        if not np.isfinite(seconds).all(axis=1).any():
            return math.inf, math.inf
        least: np.ndarray = seconds.min(axis=0)
        return float((least / self._best).max()) - 1, float((least * self._weights).sum())
