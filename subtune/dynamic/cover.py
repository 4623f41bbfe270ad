"""The fewest kernels of which one is near the best at every instance: greedy submodular cover of weighted time.

What a set of kernels saves of the total time, where an instance counts until it is within the bound, grows less and
less with each one added. So taking the one that saves most, again and again, needs at most a logarithmic factor more
than the fewest (Wolsey, 1982). What later ones made superfluous is dropped at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Cover:
    """`kernels`: rows of the matrix of times, in increasing order. Regrets are those of the best of them."""

    kernels: tuple[int, ...]
    worst_regret: float
    """Over all instances. Above the bound where that many kernels did not reach it, inf where they leave one out."""
    mean_regret: float
    """Weighted."""


def regrets(times: np.ndarray) -> np.ndarray:
    """Of times[k, w], how much longer kernel k takes at instance w than the best kernel: 0.05 is 5 %; inf stays inf.

    Raises:
        ValueError: it is no matrix of positive numbers, or no kernel can compute some instance.
    """
    times = np.asarray(times, dtype=float)
    if times.ndim != 2 or not times.size or not (times > 0).all():
        raise ValueError(f"times are a matrix [kernels, instances] of positive seconds, or inf: {times.shape}")
    best = times.min(axis=0)
    if not np.isfinite(best).all():
        raise ValueError(f"no kernel can compute instance {int(np.isinf(best).argmax())}")
    return times / best - 1


def shares(weights: np.ndarray, instances: int) -> np.ndarray:
    """Weights that sum to 1. Raises ValueError: they are not one each, or negative, or all 0."""
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (instances,) or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise ValueError(f"weights are {instances} numbers, none negative and not all 0")
    return weights / weights.sum()


def cover(
    times: np.ndarray,
    weights: np.ndarray,
    eps: float,
    max_kernels: int,
    *,
    mean_eps: float = np.inf,
) -> Cover:
    """Few kernels, one of which takes at most 1 + eps times the best kernel's time at each instance.

    If `max_kernels` do not reach that, those with the least bound that is found. The same input gives the same kernels;
    of equally good ones those of the least number. It is no search of all sets: a smaller one may exist.

    Args:
        times: times[k, w] of kernel k at instance w in seconds; inf where it cannot compute it.
        weights: how often instance w occurs.
        mean_eps: while the weighted mean regret is above, kernels are added, as long as there may be more.
    Raises:
        ValueError: see `regrets` and `shares`; or `max_kernels` or `eps` make no sense.
    """
    if max_kernels < 1 or not eps >= 0 or not mean_eps >= 0:
        raise ValueError(f"at least one kernel and no negative bounds, not {max_kernels}, {eps} and {mean_eps}")
    regret = regrets(times)
    often = shares(weights, regret.shape[1])
    total = often * np.asarray(times, dtype=float).min(axis=0)
    # An instance that never occurs is within the bound, too.
    problem = _Problem(
        regret=regret,
        often=often,
        value=total / total.sum() + 1e-6 / len(total),
    )
    chosen = problem.within(eps, max_kernels)
    if chosen is None:
        chosen = problem.least_bound(eps, max_kernels)
    else:
        chosen = problem.extended(chosen, mean_eps, max_kernels)
    left = regret[list(chosen)].min(axis=0)
    return Cover(chosen, float(left.max()), _mean(left, often))


@dataclass(frozen=True, eq=False, slots=True)
class _Problem:
    regret: np.ndarray
    often: np.ndarray
    value: np.ndarray
    """Share of instance w in the total time, and a trace for being there."""

    def within(self, bound: float, limit: int) -> tuple[int, ...] | None:
        """The cover found; None: it needs more than `limit`."""
        chosen = self._minimal(self._greedy(bound, len(self.regret)), bound)
        return chosen if len(chosen) <= limit and self._worst(chosen) <= bound else None

    def least_bound(self, eps: float, limit: int) -> tuple[int, ...]:
        """By bisection over all bounds that a kernel has at an instance."""
        bounds = np.unique(self.regret[np.isfinite(self.regret) & (self.regret > eps)])
        best: tuple[int, ...] | None = None
        low, high = 0, len(bounds)
        while low < high:
            middle = (low + high) // 2
            chosen = self.within(float(bounds[middle]), limit)
            if chosen is None:
                low = middle + 1
                continue
            if best is None or self._worst(chosen) < self._worst(best):
                best = chosen
            high = middle
        if best is None:  # some instance is left out
            loosest = float(bounds[-1]) if len(bounds) else eps
            best = tuple(sorted(self._greedy(loosest, limit)))
        return best

    def extended(self, chosen: tuple[int, ...], mean_eps: float, limit: int) -> tuple[int, ...]:
        """And those that lower the mean most, until it is within `mean_eps`."""
        kernels = list(chosen)
        left = self.regret[kernels].min(axis=0)
        while _mean(left, self.often) > mean_eps and len(kernels) < limit:
            gains = ((left - np.minimum(left, self.regret)) * self.often).sum(axis=1)
            if not gains.max() > 0:
                break
            kernels.append(int(gains.argmax()))
            left = np.minimum(left, self.regret[kernels[-1]])
        return tuple(sorted(kernels))

    def _greedy(self, bound: float, limit: int) -> list[int]:
        finite = self.regret[np.isfinite(self.regret)]
        ceiling = 2 * float(finite.max()) + bound + 1  # not to be computed at all is worse than anything
        regret = np.minimum(self.regret, ceiling)
        left = np.full(self.regret.shape[1], ceiling)
        chosen: list[int] = []
        while (left > bound).any() and len(chosen) < limit:
            # A sum of its own for each row: equal kernels have equal gains, and the first of them is taken.
            below = np.minimum(left, regret)
            gains = ((np.maximum(left, bound) - np.maximum(below, bound)) * self.value).sum(axis=1)
            most = gains.max()
            if not most > 0:
                break
            # Of those that save as much until the bound, the one that saves most beyond.
            further = ((left - below) * self.value).sum(axis=1)
            chosen.append(int(np.where(gains >= most * (1 - 1e-12), further, -1.0).argmax()))
            left = below[chosen[-1]]
        return chosen

    def _minimal(self, chosen: list[int], bound: float) -> tuple[int, ...]:
        """Without what can be left out: what is missed least first, then the last."""
        kept = sorted(chosen)
        while len(kept) > 1:
            fewer = [[k for k in kept if k != out] for out in reversed(kept)]
            right = [some for some in fewer if self._worst(some) <= bound]
            if not right:
                break
            kept = min(right, key=self._time)
        return tuple(kept)

    def _worst(self, chosen: Sequence[int]) -> float:
        return float(self.regret[list(chosen)].min(axis=0).max()) if chosen else np.inf

    def _time(self, chosen: Sequence[int]) -> float:
        return float((self.regret[list(chosen)].min(axis=0) * self.value).sum())


def _mean(regret: np.ndarray, often: np.ndarray) -> float:
    """Weighted; an instance that never occurs counts nothing, even where it is left out."""
    return float((regret[often > 0] * often[often > 0]).sum())
