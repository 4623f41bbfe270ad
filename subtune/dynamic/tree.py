"""A decision tree over shapes: comparisons of extents with whole numbers, and a kernel in each leaf.

It becomes the predicates of the host code: `if e0 <= 16: ...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from subtune.core.dispatch import Leaf, Split, Tree
from subtune.dynamic.cover import regrets


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


def depth(tree: Tree) -> int:
    """Comparisons until a kernel is known, at most; 0 of a single leaf."""
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.low), depth(tree.high))


def kernels(tree: Tree) -> tuple[int, ...]:
    """Those that some leaf has, in increasing order."""
    return tuple(sorted({leaf.kernel for leaf in leaves(tree)}))


def worst_regret(tree: Tree, times: np.ndarray, extents: np.ndarray) -> float:
    """How much longer than the best kernel of times[k, w] the tree's choice takes, at the worst of the instances."""
    return float(regrets(times)[chosen(tree, extents), np.arange(len(extents))].max())


def as_text(tree: Tree, names: Sequence[str] = ()) -> str:
    """As a nest of ifs, one line each; extents are called e0, e1, … without `names`.

    >>> print(as_text(Split(0, 16, Leaf(2), Leaf(5)), ["seq"]))
    if seq <= 16:
      kernel 2
    else:
      kernel 5
    """
    return "\n".join(_lines(tree, names))


def _lines(tree: Tree, names: Sequence[str]) -> Iterator[str]:
    if isinstance(tree, Leaf):
        yield f"kernel {tree.kernel}"
        return
    yield f"if {names[tree.extent] if names else f'e{tree.extent}'} <= {tree.at_most}:"
    yield from (f"  {line}" for line in _lines(tree.low, names))
    first, *others = _lines(tree.high, names)
    if isinstance(tree.high, Leaf):
        yield from ("else:", f"  {first}")
    else:
        yield from (f"el{first}", *others)


def to_json(tree: Tree) -> Any:
    """A number for a leaf; [extent, at_most, low, high] for a split."""
    if isinstance(tree, Leaf):
        return tree.kernel
    return [tree.extent, tree.at_most, to_json(tree.low), to_json(tree.high)]


def from_json(value: Any) -> Tree:
    """Raises ValueError: it is no such list."""
    if _is_number(value):
        return Leaf(value)
    if not (isinstance(value, list) and len(value) == 4 and all(map(_is_number, value[:2]))):
        raise ValueError(f"a tree is a kernel or [extent, at_most, low, high] in whole numbers, not {value!r}")
    return Split(value[0], value[1], from_json(value[2]), from_json(value[3]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
