"""Trees of few leaves that keep a regret bound at all instances given.

One extent is cut into the fewest intervals, exactly. Of several, scikit-learn's decision tree proposes where to split;
a leaf's kernel is that of the least weighted regret, not the majority's, and what one kernel can do is not split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from subtune.core.dispatch import Leaf, Split, Tree
from subtune.core.errors import SubtuneError


@dataclass(frozen=True, eq=False, slots=True)
class Instances:
    """regret[k, w] of kernel k at instance w; extents[w, i]; weights[w] that sum to 1."""

    regret: np.ndarray
    extents: np.ndarray
    weights: np.ndarray


def grow(instances: Instances, bound: float, split_cost: float = math.inf) -> Tree:
    """A tree whose choice has a regret of at most `bound` at each of the instances.

    Args:
        split_cost: how much weighted mean regret a leaf that the bound does not ask for must save. inf: there are none;
            0: nearly each instance has its best kernel.
    Raises:
        ValueError: at some instance no kernel is within the bound, or two instances have the same extents.
        SubtuneError: several extents vary, and scikit-learn is not installed.
    """
    if (instances.regret.min(axis=0) > bound).any():
        raise ValueError(f"no kernel is within {bound:.1%} of the best at some instance")
    if len(np.unique(instances.extents, axis=0)) < len(instances.extents):
        raise ValueError("two instances have the same extents")
    varying = np.flatnonzero(np.ptp(instances.extents, axis=0) > 0)
    if not len(varying):  # one instance
        return Leaf(int(instances.regret[:, 0].argmin()))
    if len(varying) == 1:
        return _intervals(instances, int(varying[0]), bound, split_cost)
    found = [
        _Grower(instances, bound, split_cost, criterion, is_greedy).grown()
        for criterion in ("gini", "entropy")
        for is_greedy in (True, False)
    ]
    return min(found, key=lambda grown: grown.cost(split_cost)).tree


def _intervals(instances: Instances, extent: int, bound: float, split_cost: float) -> Tree:
    """The fewest intervals, then the least weighted regret; or the least sum of regret and `split_cost` of each."""
    order = np.argsort(instances.extents[:, extent], kind="stable")
    values = instances.extents[order, extent]
    regret = instances.regret[:, order]
    if math.isinf(split_cost):
        split_cost = bound + 1  # the regret of all is less
    with np.errstate(invalid="ignore"):
        costs = np.where(regret <= bound, regret * instances.weights[order], np.inf)
    least = costs[:, 0]  # of all cuts of the instances so far, by the kernel of the last interval
    before = np.empty((len(order), len(regret)), dtype=int)  # the kernel of the instance before
    for at in range(1, len(order)):
        cheapest = int(least.argmin())
        is_cut = least[cheapest] + split_cost < least
        before[at] = np.where(is_cut, cheapest, np.arange(len(regret)))
        least = np.where(is_cut, least[cheapest] + split_cost, least) + costs[:, at]
    kernel = int(least.argmin())
    pieces = [(kernel, int(values[-1]))]  # from the last, each with the greatest extent that it has
    for at in range(len(order) - 1, 0, -1):
        if before[at, kernel] != kernel:
            kernel = int(before[at, kernel])
            pieces.append((kernel, _round(int(values[at - 1]), int(values[at]))))
    return _balanced(extent, pieces[::-1])


def _balanced(extent: int, pieces: list[tuple[int, int]]) -> Tree:
    if len(pieces) == 1:
        return Leaf(pieces[0][0])
    half = len(pieces) // 2
    return Split(extent, pieces[half - 1][1], _balanced(extent, pieces[:half]), _balanced(extent, pieces[half:]))


def _round(low: int, high: int) -> int:
    """Of low..high - 1, the multiple of the greatest power of two: where nothing between is known, tiles end there."""
    last = high - 1
    bit = ((low - 1) ^ last).bit_length() - 1  # the highest one that changes on the way
    return last >> bit << bit


@dataclass(frozen=True, slots=True)
class _Grown:
    tree: Tree
    leaves: int
    regret: float
    """Weighted, of the instances that come here."""

    def cost(self, split_cost: float) -> tuple[float, float]:
        return (self.leaves, self.regret) if math.isinf(split_cost) else (self.leaves * split_cost + self.regret, 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class _Grower:
    instances: Instances
    bound: float
    split_cost: float
    criterion: str
    is_greedy: bool
    """Whether an instance is to get the kernel that is within the bound at most others, or its best."""

    def grown(self) -> _Grown:
        rows = np.arange(len(self.instances.extents))
        # scikit-learn compares in float32, where ranks are exact and large extents are not.
        ranks = np.stack([np.unique(column, return_inverse=True)[1] for column in self.instances.extents.T], axis=1)
        classifier = _classifier(self.criterion)
        classifier.fit(ranks, self._labels(), sample_weight=self._at_stake())
        return self._read(classifier.tree_, 0, rows, ranks)

    def _read(self, fitted: Any, node: int, rows: np.ndarray, ranks: np.ndarray) -> _Grown:
        """A node of scikit-learn's tree and what is below, as far as it is worth its leaves."""
        leaf = self._leaf(rows)
        is_pure = fitted.children_left[node] < 0
        assert leaf is not None or not is_pure, "one label is a kernel that is within the bound at all instances"
        if leaf is not None and (math.isinf(self.split_cost) or is_pure):
            return leaf
        axis = int(fitted.feature[node])
        is_low = ranks[:, axis] <= fitted.threshold[node]
        low = self._read(fitted, int(fitted.children_left[node]), rows[is_low], ranks[is_low])
        high = self._read(fitted, int(fitted.children_right[node]), rows[~is_low], ranks[~is_low])
        values = self.instances.extents[rows, axis]
        at_most = _round(int(values[is_low].max()), int(values[~is_low].min()))
        split = _Grown(Split(axis, at_most, low.tree, high.tree), low.leaves + high.leaves, low.regret + high.regret)
        if leaf is not None and leaf.cost(self.split_cost) <= split.cost(self.split_cost):
            return leaf
        return split

    def _leaf(self, rows: np.ndarray) -> _Grown | None:
        """The kernel of least weighted regret among those within the bound at all these instances."""
        regret = self.instances.regret[:, rows]
        right = np.flatnonzero((regret <= self.bound).all(axis=1))
        if not len(right):
            return None
        weighted = (regret[right] * self.instances.weights[rows]).sum(axis=1)
        best = int(weighted.argmin())
        return _Grown(Leaf(int(right[best])), 1, float(weighted[best]))

    def _labels(self) -> np.ndarray:
        """A kernel within the bound for each instance."""
        if not self.is_greedy:
            return self.instances.regret.argmin(axis=0)
        weights = self.instances.weights
        labels = np.full(len(weights), -1)
        counts = weights + 1 / len(weights)
        is_right = self.instances.regret <= self.bound
        while (labels < 0).any():
            kernel = int(((is_right & (labels < 0)) * counts).sum(axis=1).argmax())
            labels[is_right[kernel] & (labels < 0)] = kernel
        return labels

    def _at_stake(self) -> np.ndarray:
        """The weight of an instance times the regret of a kernel taken at random."""
        # Beyond twice the bound it is no matter how wrong a kernel is: it cannot be taken.
        regret = np.minimum(self.instances.regret, 2 * self.bound + 1e-3).mean(axis=0)
        at_stake = (self.instances.weights + 1e-3 / len(regret)) * regret
        # A trace of each: else a node would be as good as pure, and not be split, with a few that are wrong in it.
        return at_stake + 1e-6 * at_stake.max() + 1e-12


def _classifier(criterion: str) -> Any:
    try:
        from sklearn.tree import DecisionTreeClassifier
    except ImportError as error:
        raise SubtuneError(
            "Choosing kernels for two or more symbolic dimensions needs scikit-learn, which is not installed: "
            "pip install 'subtune[dynamic]'"
        ) from error
    return DecisionTreeClassifier(criterion=criterion, random_state=0)  # which breaks ties among splits
