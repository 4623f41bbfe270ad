"""Trees over shapes: what they choose."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from subtune.core.dispatch import Leaf, Split, Tree, choose
from subtune.dynamic.tree import chosen, kernels, leaves, renumbered

_SOME = Split(0, 16, Leaf(2), Split(1, 4, Leaf(5), Split(0, 64, Leaf(2), Leaf(0))))
_TREES = st.recursive(
    st.builds(Leaf, st.integers(0, 9)),
    lambda inner: st.builds(Split, st.integers(0, 1), st.integers(0, 9), inner, inner),
    max_leaves=12,
)


@given(_TREES, st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10)), min_size=1))
def test_rows_get_what_each_alone_gets(tree: Tree, shapes: list[tuple[int, int]]) -> None:
    assert chosen(tree, np.array(shapes)).tolist() == [choose(tree, shape) for shape in shapes]


def test_sizes():
    assert (len(list(leaves(_SOME))), kernels(_SOME)) == (4, (0, 2, 5))
    assert (list(leaves(Leaf(7))), kernels(Leaf(7))) == ([Leaf(7)], (7,))


@given(_TREES, st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10)), min_size=1))
def test_other_numbers_are_chosen_where_the_old_ones_were(tree: Tree, shapes: list[tuple[int, int]]) -> None:
    numbers = [7 * kernel + 3 for kernel in range(10)]
    at = np.array(shapes)
    assert chosen(renumbered(tree, numbers), at).tolist() == [numbers[kernel] for kernel in chosen(tree, at)]
