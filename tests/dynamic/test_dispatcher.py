"""Kernels and the tree that chooses among them: the bound holds where it is said to."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from subtune.core.dispatch import Leaf, Split, Tree, choose
from subtune.core.errors import SubtuneError
from subtune.dynamic import dispatcher as module
from subtune.dynamic.cost import MicroKernel, features, fit, to_measure
from subtune.dynamic.cover import cover, regrets
from subtune.dynamic.dispatcher import Dispatcher, dispatcher
from subtune.dynamic.grow import Instances, grow
from subtune.dynamic.tree import chosen, leaves


def needs_sklearn() -> None:
    pytest.importorskip("sklearn")


def depth(tree: Tree) -> int:
    """Comparisons until a kernel is known, at most; 0 of a single leaf."""
    return 0 if isinstance(tree, Leaf) else 1 + max(depth(tree.low), depth(tree.high))


def worst_regret(tree: Tree, times: np.ndarray, extents: np.ndarray) -> float:
    """How much longer than the best kernel of times[k, w] the tree's choice takes, at the worst of the instances."""
    return float(regrets(times)[chosen(tree, extents), np.arange(len(extents))].max())


@st.composite
def problems(draw: st.DrawFn, symbols: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(times, extents, weights): kernels that cannot compute some shapes, in no order, some of which never occur."""
    shape = st.tuples(*[st.integers(1, 40 if symbols == 1 else 6)] * symbols)
    extents = np.array(draw(st.lists(shape, min_size=1, max_size=16, unique=True)))
    time = st.one_of(st.integers(10, 20).map(float), st.just(np.inf))
    row = st.lists(time, min_size=len(extents), max_size=len(extents))
    times = np.array(draw(st.lists(row, min_size=1, max_size=5)))
    times[0, np.isinf(times).all(axis=0)] = 30
    weights = np.array(draw(st.lists(st.integers(0, 3), min_size=len(extents), max_size=len(extents))), dtype=float)
    weights[0] += not weights.any()
    return times, extents, weights


_EPS = st.sampled_from([0.0, 0.05, 0.3, 1.0])
_MEAN_EPS = st.sampled_from([math.inf, 0.02, 0.0])


def check(found: Dispatcher, times: np.ndarray, extents: np.ndarray, weights: np.ndarray) -> None:
    """It does what it says of itself."""
    taken = np.array([times[choose(found.tree, row), at] for at, row in enumerate(extents)])
    left = taken / times.min(axis=0) - 1
    assert found.worst_regret == left.max() == worst_regret(found.tree, times, extents)
    assert found.mean_regret == pytest.approx(np.average(left, weights=weights))
    assert found.kernels == tuple(sorted({leaf.kernel for leaf in leaves(found.tree)}))


@given(problems(symbols=1), _EPS, _MEAN_EPS)
def test_the_bounds_hold_over_one_symbol(problem, eps, mean_eps):
    times, extents, weights = problem
    found = dispatcher(times, extents, weights, eps, len(times), mean_eps=mean_eps)
    check(found, times, extents, weights)
    assert found.worst_regret <= eps
    assert found.mean_regret <= mean_eps + 1e-12


@given(problems(symbols=2), _EPS, _MEAN_EPS)
@settings(max_examples=60)
def test_the_bounds_hold_over_two_symbols(problem, eps, mean_eps):
    needs_sklearn()
    times, extents, weights = problem
    found = dispatcher(times, extents, weights, eps, len(times), mean_eps=mean_eps)
    check(found, times, extents, weights)
    assert found.worst_regret <= eps
    assert found.mean_regret <= mean_eps + 1e-5  # the trace that is kept of instances that never occur


@given(problems(symbols=1), _EPS, st.integers(1, 3))
def test_of_few_kernels_the_bound_that_they_reach_is_said_or_that_they_leave_shapes_out(problem, eps, max_kernels):
    times, extents, weights = problem
    try:
        found = dispatcher(times, extents, weights, eps, max_kernels)
    except SubtuneError:
        some = itertools.combinations(range(len(times)), min(max_kernels - 1, len(times)))
        assert all(np.isinf(times[list(few)].min(axis=0, initial=np.inf)).any() for few in some)
        return
    check(found, times, extents, weights)
    assert len(found.kernels) <= max_kernels


@given(problems(symbols=1), _EPS)
def test_one_symbol_has_the_fewest_intervals(problem, eps):
    """Against extending each interval as far as some kernel reaches, which is the fewest, too."""
    times, extents, weights = problem
    regret = regrets(times)
    tree = grow(Instances(regret, extents, weights / weights.sum()), eps)
    is_right = (regret <= eps)[:, np.argsort(extents[:, 0])]
    count, able = 1, np.ones(len(times), dtype=bool)
    for column in is_right.T:
        able = able & column
        if not able.any():
            count, able = count + 1, column
    assert sum(1 for _ in leaves(tree)) == count
    assert depth(tree) == math.ceil(math.log2(count))


def test_of_as_many_intervals_those_of_least_weighted_regret():
    # Kernel 0 may go on until 4, kernel 1 begin at 2: at 3 kernel 1 is faster, and at 2 kernel 0.
    times = np.array([[1.0, 1.0, 1.03, 1.04, 9.0], [9.0, 1.02, 1.0, 1.0, 1.0]])
    tree = dispatcher(times, np.arange(1, 6)[:, None], np.ones(5), 0.05, 2).tree
    assert tree == Split(0, 2, Leaf(0), Leaf(1))


def test_intervals_are_added_for_the_mean():
    # One kernel is within the bound everywhere; the other is faster at four shapes, three of which are neighbours.
    times = np.array([[1.0] * 8, [1.2, 0.96, 1.2, 1.2, 0.96, 0.96, 0.96, 1.2]])
    extents, weights = np.arange(1, 9)[:, None], np.ones(8)
    assert dispatcher(times, extents, weights, 0.05, 2).tree == Leaf(0)
    found = dispatcher(times, extents, weights, 0.05, 2, mean_eps=0.006)
    assert found.tree == Split(0, 4, Leaf(0), Split(0, 7, Leaf(1), Leaf(0)))
    assert found.mean_regret == pytest.approx((1 / 0.96 - 1) / 8)
    assert dispatcher(times, extents, weights, 0.05, 2, mean_eps=0.0).mean_regret == 0


def test_a_mean_out_of_reach_does_not_give_each_shape_a_leaf():
    # Two kernels are faster in turns, by little. What is 3 % faster can compute one shape only, each time another.
    extents = np.arange(1, 65)[:, None]
    turns = 1.03 + 1e-3 * (extents[:, 0] % 2)
    times = np.concatenate([[turns, turns[::-1]], np.where(np.eye(64) == 1, 1.0, np.inf)])
    assert cover(times, np.ones(64), 0.05, 2, mean_eps=0.001).kernels == (0, 1)
    assert dispatcher(times, extents, np.ones(64), 0.05, 2, mean_eps=0.001).tree == Leaf(0)


def test_a_threshold_between_instances_is_where_tiles_end():
    times = np.array([[1.0, 2.0], [2.0, 1.0]])
    for low, high, at_most in ((30, 36, 32), (5, 9, 8), (16, 17, 16), (33, 48, 40), (3, 200, 128)):
        tree = dispatcher(times, np.array([[low], [high]]), np.ones(2), 0.05, 2).tree
        assert tree == Split(0, at_most, Leaf(0), Leaf(1))


def test_one_kernel_or_one_shape_needs_no_comparison():
    assert dispatcher(np.ones((1, 9)), np.arange(1, 10)[:, None], np.ones(9), 0.05, 1).tree == Leaf(0)
    grid = np.array(list(itertools.product(range(1, 4), repeat=2)))
    assert dispatcher(np.array([[2.0], [1.0]]), grid[:1], np.ones(1), 0.05, 2).tree == Leaf(1)


def test_a_symbol_that_does_not_vary_is_not_compared():
    extents = np.stack([np.full(4, 7), np.arange(1, 5)], axis=1)
    times = np.array([[1.0, 1.0, 2.0, 2.0], [2.0, 2.0, 1.0, 1.0]])
    assert dispatcher(times, extents, np.ones(4), 0.05, 2).tree == Split(1, 2, Leaf(0), Leaf(1))


TILES = tuple(itertools.product((8, 16, 32, 64, 128, 256), (1, 2, 4, 8)))


def kernels_of(workers: int) -> list[MicroKernel]:
    return [MicroKernel(tile, workers, static_tiles=12) for tile in TILES]


def wave_times(extents: np.ndarray) -> np.ndarray:
    """Of 24 kernels of padded tiles on 132 SMs: large tiles are more efficient, and each wave is a whole one."""
    return np.array(
        [
            3e-6 + features(kernel, extents).waves * (1e-7 + 2e-8 * (np.prod(kernel.granules) + 48))
            for kernel in kernels_of(132)
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_two_symbols_on_200_shapes_never_measured_with_at_most_16_kernels(seed):
    """Each kernel is measured at two shapes, and takes up to 0.5 % more or less than waves say."""
    needs_sklearn()
    random = np.random.default_rng(seed)
    grid = np.array(list(itertools.product(range(1, 513), range(1, 9))))
    phase = random.uniform(0, 2 * np.pi, (len(TILES), 1))
    times = wave_times(grid) * (1 + 0.005 * np.sin(np.log(grid).sum(axis=1) + phase))
    predicted, measured = [], set()
    for kernel, row in zip(kernels_of(132), times, strict=True):
        everywhere = features(kernel, grid)
        some = to_measure(everywhere, 2)
        predicted.append(fit(features(kernel, grid[some]), row[some]).predict(everywhere))
        measured.update(some)
    found = dispatcher(np.array(predicted), grid, np.ones(len(grid)), 0.03, 16)
    assert len(found.kernels) <= 16
    held_out = random.choice(sorted(set(range(len(grid))) - measured), 200, replace=False)
    assert worst_regret(found.tree, times[:, held_out], grid[held_out]) <= 0.05


def test_shapes_that_a_tree_never_saw_are_right_but_for_few():
    """Because thresholds are where tiles end. What must be right is given: the domain is."""
    needs_sklearn()
    grid = np.array(list(itertools.product(range(1, 513), range(1, 9))))
    times = wave_times(grid)
    order = np.random.default_rng(0).permutation(len(grid))
    held_out, known = order[:200], order[200:]
    found = dispatcher(times[:, known], grid[known], np.ones(len(known)), 0.05, 16)
    left = regrets(times)[chosen(found.tree, grid), np.arange(len(grid))]
    assert left[known].max() == found.worst_regret <= 0.05
    assert (left[held_out] > 0.05).sum() <= 2


def test_counter_examples_are_added_until_a_tree_of_a_sample_is_right_everywhere(monkeypatch):
    needs_sklearn()
    grid = np.array(list(itertools.product(range(1, 129), range(1, 9))))
    times = wave_times(grid)
    weights = np.ones(len(grid))
    sizes = []
    grow_all = module.grow
    monkeypatch.setattr(module, "grow", lambda some, *rest: (sizes.append(len(some.extents)), grow_all(some, *rest))[1])
    monkeypatch.setattr(module, "_TRAINED", 40)
    monkeypatch.setattr(module, "_COUNTER_EXAMPLES", 30)
    found = dispatcher(times, grid, weights, 0.05, 16)
    check(found, times, grid, weights)
    assert found.worst_regret <= 0.05
    assert sizes[0] == 40 < sizes[-1] < len(grid)


def test_the_same_input_gives_the_same_tree():
    needs_sklearn()
    grid = np.array(list(itertools.product(range(1, 65), range(1, 9))))
    times = wave_times(grid)
    assert dispatcher(times, grid, np.ones(512), 0.05, 16) == dispatcher(times, grid, np.ones(512), 0.05, 16)


def test_a_leaf_has_the_kernel_of_least_weighted_regret_not_of_most_instances():
    needs_sklearn()
    grid = np.array(list(itertools.product((1, 2), (1, 2))))
    times = np.array([[1.0, 1.0, 1.0, 1.04], [1.01, 1.01, 1.01, 1.0]])
    assert dispatcher(times, grid, np.array([1, 1, 1, 1]), 0.05, 2).tree == Leaf(1)
    both = Instances(regrets(times), grid, np.array([3, 1, 1, 1]) / 6)
    assert grow(both, 0.05) == Leaf(0)
    assert grow(Instances(both.regret, grid, np.array([1, 1, 1, 1]) / 4), 0.05) == Leaf(1)


def test_large_extents_are_told_apart():
    """They differ by less than float32 shows."""
    needs_sklearn()
    extents = np.array([[2**30 + one, two] for one in range(4) for two in (1, 2)])
    times = np.where(extents[:, 0] % 2 == 0, [[1.0], [2.0]], [[2.0], [1.0]])
    assert dispatcher(times, extents, np.ones(8), 0.0, 2).worst_regret == 0


def test_without_scikit_learn_two_symbols_are_refused_and_one_is_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.tree", None)
    times = np.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(SubtuneError, match=r"pip install 'subtune\[dynamic\]'"):
        dispatcher(times, np.array([[1, 2], [2, 1]]), np.ones(2), 0.05, 2)
    assert dispatcher(times, np.array([[1, 2], [1, 3]]), np.ones(2), 0.05, 2).kernels == (0, 1)


def test_kernels_that_leave_shapes_out_are_refused():
    times = np.array([[1.0, np.inf], [np.inf, 1.0]])
    with pytest.raises(SubtuneError, match="With --max-kernels 1 some shapes"):
        dispatcher(times, np.array([[1], [2]]), np.ones(2), 0.05, 1)


@pytest.mark.parametrize(
    ("extents", "said"),
    [
        (np.array([[1.0], [2.0]]), "whole numbers"),
        (np.array([1, 2]), "whole numbers"),
        (np.array([[1]]), "whole numbers"),
        (np.array([[1], [1]]), "the same extents"),
    ],
)
def test_extents_that_make_no_sense(extents, said):
    with pytest.raises(ValueError, match=said):
        dispatcher(np.ones((1, 2)), extents, np.ones(2), 0.05, 1)
