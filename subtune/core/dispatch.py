"""Which of a dynamic subgraph's kernels computes an instance: a tree of comparisons of its extents with numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Extents = tuple[int, ...]
"""Of an instance: the sizes that vary in its workload, in the workload's order."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The kernel of this number."""

    kernel: int


@dataclass(frozen=True, slots=True)
class Split:
    """`low` where the extent of this number is at most `at_most`, else `high`."""

    extent: int
    at_most: int
    low: Tree
    high: Tree


Tree = Leaf | Split


def choose(tree: Tree, extents: Sequence[int]) -> int:
    """The number of the kernel for an instance.

    >>> choose(Split(0, 16, Leaf(0), Leaf(1)), (17,))
    1
    """
    while isinstance(tree, Split):
        tree = tree.low if extents[tree.extent] <= tree.at_most else tree.high
    return tree.kernel
