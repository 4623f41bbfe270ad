"""Trees over shapes: what they choose, how they are written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune.core.dispatch import Leaf, Split, Tree, choose
from subtune.dynamic.tree import (
    as_text,
    chosen,
    depth,
    from_json,
    kernels,
    leaves,
    to_json,
    worst_regret,
)

_SOME = Split(0, 16, Leaf(2), Split(1, 4, Leaf(5), Split(0, 64, Leaf(2), Leaf(0))))
_TREES = st.recursive(
    st.builds(Leaf, st.integers(0, 9)),
    lambda inner: st.builds(Split, st.integers(0, 1), st.integers(0, 9), inner, inner),
    max_leaves=12,
)


@given(_TREES)
def test_what_is_written_is_read_back(tree: Tree) -> None:
    assert from_json(to_json(tree)) == tree


@given(_TREES, st.lists(st.tuples(st.integers(1, 10), st.integers(1, 10)), min_size=1))
def test_rows_get_what_each_alone_gets(tree: Tree, shapes: list[tuple[int, int]]) -> None:
    assert chosen(tree, np.array(shapes)).tolist() == [choose(tree, shape) for shape in shapes]


@given(_TREES, st.tuples(st.integers(1, 10), st.integers(1, 10)))
def test_the_text_is_what_is_chosen(tree: Tree, shape: tuple[int, int]) -> None:
    """As a program of Python's, with `kernel N` for a result."""
    found: dict[str, int] = {"e0": shape[0], "e1": shape[1]}
    exec(as_text(tree).replace("kernel ", "kernel = "), found)
    assert found["kernel"] == choose(tree, shape)


def test_text_with_names():
    assert as_text(_SOME, ["seq", "batch"]).splitlines() == [
        "if seq <= 16:",
        "  kernel 2",
        "elif batch <= 4:",
        "  kernel 5",
        "elif seq <= 64:",
        "  kernel 2",
        "else:",
        "  kernel 0",
    ]


def test_json_is_numbers_and_lists():
    assert to_json(_SOME) == [0, 16, 2, [1, 4, 5, [0, 64, 2, 0]]]


@pytest.mark.parametrize(
    "value", [None, "1", -1, True, 1.5, [], [0, 16, 1], [0, "16", 1, 2], [0, 16, 1, [2]], [-1, 2, 0, 1]]
)
def test_what_is_no_tree(value):
    with pytest.raises(ValueError, match="a tree is"):
        from_json(value)


def test_sizes():
    assert (depth(_SOME), len(list(leaves(_SOME))), kernels(_SOME)) == (3, 4, (0, 2, 5))
    assert (depth(Leaf(7)), list(leaves(Leaf(7))), kernels(Leaf(7))) == (0, [Leaf(7)], (7,))


def test_the_worst_regret_is_of_what_is_chosen():
    times = np.array([[1.0, 2.0, 3.0], [1.5, 1.0, np.inf]])
    extents = np.array([[1], [2], [3]])
    assert worst_regret(Leaf(0), times, extents) == 1.0
    assert worst_regret(Split(0, 1, Leaf(1), Leaf(0)), times, extents) == 1.0
    assert worst_regret(Split(0, 2, Leaf(1), Leaf(0)), times, extents) == 0.5
    assert worst_regret(Leaf(1), times, extents) == np.inf
