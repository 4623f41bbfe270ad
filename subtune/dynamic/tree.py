"""A decision tree over shapes: comparisons of extents with whole numbers, and a kernel in each leaf.

It becomes the predicates of the host code: `if e0 <= 16: ...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from subtune.core.dispatch import Leaf, Split, Tree


def chosen(tree: Tree, extents: np.ndarray) -> np.ndarray:
    """The kernel for each row of `extents[w, i]`."""
    if isinstance(tree, Leaf):
        return np.full(len(extents), tree.kernel)
    is_low = extents[:, tree.extent] <= tree.at_most
    return np.where(is_low, chosen(tree.low, extents), chosen(tree.high, extents))


def leaves(tree: Tree) -> Iterator[Leaf]:
    """From left to right; a kernel may be in several."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from leaves(tree.low)
        yield from leaves(tree.high)


def kernels(tree: Tree) -> tuple[int, ...]:
    """Those that some leaf has, in increasing order."""
    return tuple(sorted({leaf.kernel for leaf in leaves(tree)}))


def renumbered(tree: Tree, numbers: Sequence[int] | Mapping[int, int]) -> Tree:
    """With kernel `numbers[k]` for every k."""
    if isinstance(tree, Leaf):
        return Leaf(int(numbers[tree.kernel]))
    return Split(tree.extent, tree.at_most, renumbered(tree.low, numbers), renumbered(tree.high, numbers))
