"""Which kernels an artifact holds for a dynamic anchor, and the tree that chooses among them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from subtune.core.dispatch import Tree
from subtune.core.errors import SubtuneError
from subtune.dynamic.cover import cover, regrets, shares
from subtune.dynamic.grow import Instances, grow
from subtune.dynamic.tree import chosen, kernels, renumbered

_TRAINED = 4096
"""Instances a tree is first grown from; of more, a sample. It is verified at all of them."""
_COUNTER_EXAMPLES = 256
"""Instances that a round of verification adds, the worst first."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    tree: Tree
    worst_regret: float
    """Of the tree's choice against the best of all kernels, at the worst of all instances."""
    mean_regret: float
    """Weighted."""

    @property
    def kernels(self) -> tuple[int, ...]:
        """Rows of the matrix of times: those of the tree's leaves, in increasing order."""
        return kernels(self.tree)


def dispatcher(
    times: np.ndarray,
    extents: np.ndarray,
    weights: np.ndarray,
    eps: float,
    max_kernels: int,
    *,
    mean_eps: float = math.inf,
) -> Dispatcher:
    """Few kernels and a tree of few leaves, which takes at most 1 + eps times the best kernel's time at each instance.

    Where `max_kernels` do not reach `eps`, the tree keeps the bound that they reach. While the weighted mean regret is
    above `mean_eps`, kernels are added, as far as `max_kernels` allows, and leaves.

    Args:
        times: times[k, w] of kernel k at instance w in seconds; inf where it cannot compute it.
        extents: extents[w, i], whole numbers that the tree compares; no two instances have the same.
        weights: how often instance w occurs.
    Raises:
        ValueError: see `cover`; or extents are no such matrix.
        SubtuneError: `max_kernels` cannot compute all instances; or several extents vary and scikit-learn is missing.
    """
    extents, regret = np.asarray(extents), regrets(times)
    if extents.ndim != 2 or not np.issubdtype(extents.dtype, np.integer) or len(extents) != regret.shape[1]:
        raise ValueError(f"extents are a matrix [instances, symbols] of whole numbers: {extents.dtype} {extents.shape}")
    found = cover(times, weights, eps, max_kernels, mean_eps=mean_eps)
    if math.isinf(found.worst_regret):
        raise SubtuneError(f"With --max-kernels {max_kernels} some shapes of the domain have no kernel: allow more.")
    kept = np.array(found.kernels)
    all_instances = Instances(regret[kept], extents, shares(weights, len(extents)))
    bound = max(eps, found.worst_regret)
    # Where these kernels cannot reach the mean, coming near what they can must do: else each instance had a leaf.
    wanted = mean_eps if found.mean_regret <= mean_eps else 1.25 * found.mean_regret
    for split_cost in (math.inf, *(bound / 4**power for power in range(1, 9)), 0.0):
        tree = renumbered(_verified(all_instances, bound, split_cost), found.kernels)
        left = regret[chosen(tree, extents), np.arange(len(extents))]
        result = Dispatcher(tree, float(left.max()), float((left * all_instances.weights).sum()))
        if result.mean_regret <= wanted:
            break
    return result


def _verified(instances: Instances, bound: float, split_cost: float) -> Tree:
    """Grown from a sample, and the instances where that tree was wrong, until it is right at all of them."""
    count = len(instances.extents)
    is_trained = np.zeros(count, dtype=bool)
    is_trained[np.random.default_rng(0).permutation(count)[:_TRAINED]] = True
    while True:
        rows = np.flatnonzero(is_trained)
        sample = Instances(instances.regret[:, rows], instances.extents[rows], instances.weights[rows])
        tree = grow(sample, bound, split_cost)
        left = instances.regret[chosen(tree, instances.extents), np.arange(count)]
        wrong = np.flatnonzero(left > bound)
        if not len(wrong):
            return tree
        is_trained[wrong[np.argsort(-left[wrong], kind="stable")[:_COUNTER_EXAMPLES]]] = True
