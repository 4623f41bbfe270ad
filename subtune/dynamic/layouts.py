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
    search = _Search(options, best, weights, regret)
    spare = most_bytes - sum(options[name][at].nbytes for name, at in search.at.items())
    while step := search.best_step(spare):
        name, at, more = step
        spare -= more
        search.take(name, at)
    return {name: options[name][at] for name, at in search.at.items()}


class _Search:
    def __init__(
        self,
        options: Mapping[str, Sequence[Layouts]],
        best: Mapping[str, np.ndarray],
        weights: np.ndarray,
        regret: float,
    ) -> None:
        self._options, self._weights, self._regret = options, weights, regret
        self._best: np.ndarray = np.sum(list(best.values()), axis=0)
        self._mean_s = float(self._best @ weights)
        self._worth = {name: WORTH * float(one @ weights) / self._mean_s for name, one in best.items()}
        self.at = dict.fromkeys(options, 0)
        """The option of each workload."""
        self._seconds: np.ndarray = np.sum([of[0].seconds for of in options.values()], axis=0)

    def take(self, name: str, at: int) -> None:
        self._seconds = self._after(name, at)
        self.at[name] = at

    def best_step(self, spare: float) -> tuple[str, int, int] | None:
        """A workload's other option, and how many bytes more that takes; None: there is none that is worth it."""
        now = self._cost(self._seconds)
        best: tuple[float, str, int, int] | None = None
        for name, at, more in self._steps():
            gain = now - self._cost(self._after(name, at))
            if more > max(spare, 0) or gain <= (self._worth[name] if more > 0 else 1e-9):
                continue
            worth = gain / max(more, 1)
            if best is None or worth > best[0]:
                best = worth, name, at, more
        return best[1:] if best else None

    def _steps(self) -> Iterator[tuple[str, int, int]]:
        for name, of in self._options.items():
            for at, one in enumerate(of):
                if at != self.at[name]:
                    yield name, at, one.nbytes - of[self.at[name]].nbytes

    def _after(self, name: str, at: int) -> np.ndarray:
        of = self._options[name]
        changed: np.ndarray = self._seconds - of[self.at[name]].seconds + of[at].seconds
        return changed

    def _cost(self, seconds: np.ndarray) -> float:
        """Shares of the least time: what the mean is above it, and the worst shape beyond the regret."""
        mean = float(seconds @ self._weights) / self._mean_s - 1
        return mean + max(0.0, float((seconds / self._best).max()) - 1 - self._regret)
