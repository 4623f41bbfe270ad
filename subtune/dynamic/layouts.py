"""Which layouts of their weights a model's workloads keep, within a limit of bytes.

Kernels of one workload may want its weights in different layouts, each of which is kept beside the others. What counts
is the model's time: the mean over all shapes, and how far it is above the least at any shape, beyond the regret that is
allowed. So a layout that is good for many rows does not take the place of one that is good for a few.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from subtune.core.candidate import Candidate

WORTH = 0.01
"""Of a workload's time: what more bytes have to save, on the mean or at the worst shape."""


@dataclass(frozen=True, slots=True)
class Layouts:
    """Kernels that take a workload's weights in some layouts."""

    members: tuple[Candidate, ...]
    seconds: np.ndarray
    """Of the fastest of them in all of the model's calls, at each shape; infinite where none serves it."""
    nbytes: int
    """Of the weights in these layouts, in all of the model's calls."""


def worthwhile(options: Sequence[Layouts]) -> list[Layouts]:
    """From the fewest bytes on, without those that another of no more bytes is as fast as at every shape."""
    kept: list[Layouts] = []
    for one in sorted(options, key=lambda one: (one.nbytes, float(one.seconds.sum()))):
        if not any((other.seconds <= one.seconds).all() for other in kept):
            kept.append(one)
    return kept


def taken(
    options: Mapping[str, Sequence[Layouts]],
    best: Mapping[str, np.ndarray],
    weights: np.ndarray,
    regret: float,
    most_bytes: float,
) -> dict[str, Layouts]:
    """One of the options of every workload, by name.

    From the smallest of each on, the step is taken that lowers the cost most for a byte, as long as it fits. What has
    no smaller option exceeds the limit.

    Args:
        best: seconds of a workload's calls at each shape, if all layouts were kept.
        weights: how often the shapes occur; their sum is 1.
        regret: how much longer than with all layouts the model may take at any shape: no more counts.
    """
    if not options:  # views alone
        return {}
    at = dict.fromkeys(options, 0)
    spare = most_bytes - sum(of[0].nbytes for of in options.values())
    for is_added in (False, True):
        search = _Search(options, best, weights, regret, at, is_added)
        while steps := search.best_step(spare) or search.best_pair(spare):
            spare -= sum(more for _, _, more in steps)
            search.take(steps)
    return {name: options[name][i] for name, i in at.items()}


_Step = tuple[str, int, int]
"""A workload, another of its options, and how many bytes more that takes."""


class _Search:
    """Changes `at`, the option of each workload; with `is_added` only to those that are slower nowhere."""

    def __init__(
        self,
        options: Mapping[str, Sequence[Layouts]],
        best: Mapping[str, np.ndarray],
        weights: np.ndarray,
        regret: float,
        at: dict[str, int],
        is_added: bool,
    ) -> None:
        self._options, self._weights, self._regret = options, weights, regret
        self._best: np.ndarray = np.sum(list(best.values()), axis=0)
        self._mean_s = float(self._best @ weights)
        self._worth = {name: WORTH * float(one @ weights) / self._mean_s for name, one in best.items()}
        self._at, self._is_added = at, is_added
        self._seconds: np.ndarray = np.sum([of[at[name]].seconds for name, of in options.items()], axis=0)
        self._now = self._cost(self._seconds)

    def take(self, steps: Sequence[_Step]) -> None:
        self._seconds = self._after(steps)
        self._now = self._cost(self._seconds)
        self._at.update({name: at for name, at, _ in steps})

    def best_step(self, spare: float) -> tuple[_Step, ...]:
        """The one that lowers the cost most for a byte; none that is worth it: ()."""
        steps = [(one,) for one in self._steps() if one[2] <= max(spare, 0)]
        found = [(self._gain(one) / max(one[0][2], 1), one) for one in steps]
        return max((one for one in found if one[0] > 0), default=(0.0, ()))[1]

    def best_pair(self, spare: float) -> tuple[_Step, ...]:
        """Two that lower the cost most, where one gives up what the other needs."""
        steps = list(self._steps())
        pairs = [(one, other) for one in steps for other in steps if one[2] < 0 < other[2] and one[0] != other[0]]
        found = [(self._gain(pair), pair) for pair in pairs if pair[0][2] + pair[1][2] <= max(spare, 0)]
        return max((one for one in found if one[0] > 0), default=(0.0, ()))[1]

    def _gain(self, steps: Sequence[_Step]) -> float:
        """How much lower the cost is afterwards; 0 where that is not worth more bytes."""
        least = sum(self._worth[name] for name, _, more in steps if more > 0) or 1e-9
        gain = self._now - self._cost(self._after(steps))
        return gain if gain > least else 0.0

    def _steps(self) -> Iterator[_Step]:
        for name, of in self._options.items():
            for at, one in enumerate(of):
                now = of[self._at[name]]
                if at != self._at[name] and not (self._is_added and (one.seconds > now.seconds).any()):
                    yield name, at, one.nbytes - now.nbytes

    def _after(self, steps: Sequence[_Step]) -> np.ndarray:
        changed: np.ndarray = self._seconds
        for name, at, _ in steps:
            of = self._options[name]
            changed = changed - of[self._at[name]].seconds + of[at].seconds
        return changed

    def _cost(self, seconds: np.ndarray) -> float:
        """Shares of the least time: what the mean is above it, and the worst shape beyond the regret; of layouts that
        are added, what all shapes are beyond it."""
        beyond = np.maximum(seconds / self._best - 1 - self._regret, 0)
        if self._is_added:
            return float(beyond.mean())
        return float(seconds @ self._weights) / self._mean_s - 1 + float(beyond.max())
