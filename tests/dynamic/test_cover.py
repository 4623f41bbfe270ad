"""The fewest kernels within a bound: what is promised of every matrix of times."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune.dynamic.cover import cover, regrets


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """(times, weights), with kernels that cannot compute some instances, and instances that never occur."""
    kernels, instances = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    time = st.one_of(st.integers(10, 20).map(float), st.just(np.inf))
    rows = st.lists(st.lists(time, min_size=instances, max_size=instances), min_size=kernels, max_size=kernels)
    times = np.array(draw(rows))
    times[0, np.isinf(times).all(axis=0)] = 30
    weights = np.array(draw(st.lists(st.integers(0, 3), min_size=instances, max_size=instances)), dtype=float)
    weights[0] += not weights.any()
    return times, weights


_EPS = st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0])


@given(matrices(), _EPS, st.integers(1, 6))
def test_what_is_reported_is_so(matrix, eps, max_kernels):
    times, weights = matrix
    found = cover(times, weights, eps, max_kernels)
    assert list(found.kernels) == sorted(set(found.kernels))
    assert 1 <= len(found.kernels) <= max_kernels
    with np.errstate(invalid="ignore"):
        left = times[list(found.kernels)].min(axis=0) / times.min(axis=0) - 1
    assert found.worst_regret == left.max()
    occurs = weights > 0
    assert found.mean_regret == pytest.approx(np.average(left[occurs], weights=weights[occurs]))


@given(matrices(), _EPS)
def test_as_many_kernels_as_there_are_reach_any_bound_and_none_is_superfluous(matrix, eps):
    times, weights = matrix
    found = cover(times, weights, eps, len(times))
    assert found.worst_regret <= eps
    regret = regrets(times)
    for out in found.kernels:
        rest = [kernel for kernel in found.kernels if kernel != out]
        assert not rest or (regret[rest].min(axis=0) > eps).any(), f"{out} of {found.kernels} could be left out"


@given(matrices(), _EPS)
def test_one_kernel_suffices_where_one_does(matrix, eps):
    times, weights = matrix
    worst = regrets(times).max(axis=1)
    found = cover(times, weights, eps, len(times))
    assert (len(found.kernels) == 1) == bool((worst <= eps).any())


@given(matrices(), _EPS)
def test_one_more_than_the_fewest_at_most(matrix, eps):
    times, weights = matrix
    regret = regrets(times)
    fewest = next(
        count
        for count in range(1, len(times) + 1)
        for some in itertools.combinations(range(len(times)), count)
        if (regret[list(some)].min(axis=0) <= eps).all()
    )
    assert len(cover(times, weights, eps, len(times)).kernels) <= fewest + 1


@given(matrices(), _EPS)
def test_of_one_kernel_the_best_is_found_where_the_bound_is_out_of_reach(matrix, eps):
    times, weights = matrix
    worst = regrets(times).max(axis=1)
    assert cover(times, weights, eps, 1).worst_regret <= max(eps, worst.min())


@given(matrices(), _EPS, st.integers(1, 6))
def test_a_matrix_that_has_every_kernel_twice_gives_the_same_kernels(matrix, eps, max_kernels):
    times, weights = matrix
    assert cover(np.concatenate([times, times]), weights, eps, max_kernels) == cover(times, weights, eps, max_kernels)


def test_the_bound_that_few_kernels_reach():
    times = np.array([[1.0, 1.2, 1.5], [1.5, 1.0, 1.1], [1.3, 1.4, 1.0]])
    assert cover(times, np.ones(3), 0.05, 3).kernels == (0, 1, 2)
    two = cover(times, np.ones(3), 0.05, 2)
    assert (two.kernels, two.worst_regret) == ((0, 1), pytest.approx(0.1))
    one = cover(times, np.ones(3), 0.05, 1)
    assert (one.kernels, one.worst_regret) == ((2,), pytest.approx(0.4))


def test_instances_that_one_kernel_leaves_out_need_another():
    times = np.array([[1.0, np.inf], [9.0, 9.0], [np.inf, 1.0]])
    assert cover(times, np.ones(2), 0.05, 2).kernels == (0, 2)
    assert cover(times, np.ones(2), 0.05, 1).kernels == (1,)
    left_out = cover(times[[0, 2]], np.ones(2), 0.05, 1)
    assert len(left_out.kernels) == 1
    assert np.isinf(left_out.worst_regret)


def test_an_instance_that_never_occurs_is_within_the_bound_too():
    times = np.array([[1.0, 2.0], [2.0, 1.0]])
    assert cover(times, np.array([1.0, 0.0]), 0.05, 2).kernels == (0, 1)
    assert cover(times, np.array([1.0, 0.0]), 0.05, 1).mean_regret == 0


def test_kernels_are_added_for_the_mean():
    times = np.array([[1.0, 1.04, 1.04], [1.2, 1.0, 1.2], [1.3, 1.3, 1.0]])
    assert cover(times, np.ones(3), 0.05, 3).kernels == (0,)
    assert cover(times, np.array([1, 2, 1]), 0.05, 3, mean_eps=0.02).kernels == (0, 1)
    assert cover(times, np.ones(3), 0.05, 3, mean_eps=0.001).kernels == (0, 1, 2)
    assert cover(times, np.ones(3), 0.05, 2, mean_eps=0.001).kernels == (0, 1)


@pytest.mark.parametrize(
    ("times", "weights", "said"),
    [
        ([[1.0, np.inf]], [1, 1], "no kernel can compute instance 1"),
        ([[1.0, 0.0]], [1, 1], "positive seconds"),
        ([1.0, 2.0], [1, 1], "a matrix"),
        ([[1.0, np.nan]], [1, 1], "positive seconds"),
        ([[1.0, 2.0]], [1], "weights are 2"),
        ([[1.0, 2.0]], [0, 0], "weights are 2"),
        ([[1.0, 2.0]], [1, -1], "weights are 2"),
    ],
)
def test_input_that_makes_no_sense(times, weights, said):
    with pytest.raises(ValueError, match=said):
        cover(np.array(times), np.array(weights), 0.05, 1)


@pytest.mark.parametrize(("eps", "max_kernels"), [(-0.1, 1), (0.05, 0), (np.nan, 1)])
def test_bounds_that_make_no_sense(eps, max_kernels):
    with pytest.raises(ValueError, match="at least one kernel"):
        cover(np.ones((1, 1)), np.ones(1), eps, max_kernels)
