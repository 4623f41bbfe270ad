"""Which kernels a dynamic subgraph gets, and which of them computes which instance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from subtune.backends import candidates
from subtune.backends.base import Device
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import NotApplicable
from subtune.core.measurement import Failure, Timing
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.workload import DynamicWorkload

_FEW = 4
"""Candidates of each measured instance whose kernels are generalised, the fastest first."""
_SLOWER = 1.25
"""Times the fastest: a candidate behind it wins nowhere near."""

Extents = tuple[int, ...]
Outcomes = Mapping[Candidate, Timing | Failure]


@dataclass
class Pool:
    """Kernels of a workload that serve all its instances, with the seconds that they took at some."""

    workload: DynamicWorkload
    device: Device
    exact_only: bool
    kernels: dict[Candidate, DynamicKernel] = field(default_factory=dict)
    seconds: dict[Candidate, dict[Extents, float]] = field(default_factory=dict)
    refused: dict[Candidate, str] = field(default_factory=dict)

    def add(self, extents: Extents, outcomes: Outcomes) -> None:
        """What was measured at one instance: its fastest candidates join, if their kernels can be generalised."""
        timed = {one: outcome.median_s for one, outcome in outcomes.items() if isinstance(outcome, Timing)}
        ordered = sorted(timed, key=lambda one: (timed[one], str(one)))
        fastest, joined = math.inf, 0
        for candidate in ordered:
            if joined >= _FEW or timed[candidate] > _SLOWER * fastest:
                break
            if self._joins(candidate):
                joined, fastest = joined + 1, min(fastest, timed[candidate])
        for candidate in ordered:
            self.seconds.setdefault(candidate, {})[extents] = timed[candidate]

    def fall_back(self, extents: Extents) -> None:
        """Take anything that can be generalised, where nothing that was measured can."""
        if self.kernels:
            return
        for candidate in (DEFAULT, *candidates(self.workload.at(extents), self.device, 20)):
            if self._joins(candidate):
                return

    def _joins(self, candidate: Candidate) -> bool:
        if candidate not in self.kernels and candidate not in self.refused:
            found = dynamic_kernel(self.workload, candidate, self.device)
            if isinstance(found, NotApplicable):
                self.refused[candidate] = found.reason
            elif self.exact_only and set(found.granules) != {1}:
                self.refused[candidate] = "it reads rows behind the last one of a model's input"
            else:
                self.kernels[candidate] = found
        return candidate in self.kernels

    def predicted(self, candidate: Candidate, instances: Sequence[Extents]) -> np.ndarray:
        """Seconds at each instance: between measured ones the seconds for an element of work, padding included,
        follow the logarithm of the work."""
        kernel, known = self.kernels[candidate], self.seconds.get(candidate, {})
        if not known:
            return np.full(len(instances), math.inf)
        work = np.array([_work(kernel, extents) for extents in instances], dtype=float)
        points = sorted((_work(kernel, extents), seconds) for extents, seconds in known.items())
        sizes = np.log([size for size, _ in points])
        rates = np.log([seconds / size for size, seconds in points])
        return work * np.exp(np.interp(np.log(work), sizes, rates))


def _work(kernel: DynamicKernel, extents: Extents) -> float:
    return float(math.prod(t * g for t, g in zip(kernel.tiles(extents), kernel.granules, strict=True)))
