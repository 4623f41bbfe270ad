"""The model of a shape-generic kernel's time: what it says of waves, and what fitting finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subtune.dynamic.cost import MicroKernel, features, fit, to_measure

_SEQ = np.arange(1, 513)[:, None]


def test_tiles_waves_and_adaptation_of_one_instance():
    kernel = MicroKernel(granules=(16, 1), workers=8, static_tiles=3)
    found = features(kernel, np.array([[33, 5]]))
    assert found.tiles == 3 * 3 * 5
    assert found.waves == 6
    assert found.padding == pytest.approx(33 / 48)
    assert found.occupancy == pytest.approx(45 / 48)
    assert found.f_adapt == pytest.approx(33 / 48 * 45 / 48)
    assert found.depth == 1


def test_a_wave_that_is_not_full_costs_its_part_where_work_is_shared_finely():
    extents = np.array([[1], [5], [8], [12]])
    assert features(MicroKernel((1,), 8), extents).waves.tolist() == [1, 1, 1, 2]
    fine = features(MicroKernel((1,), 8, is_shared_finely=True), extents)
    assert fine.waves.tolist() == [1, 1, 1, 1.5]
    assert fine.occupancy.tolist() == [1 / 8, 5 / 8, 1, 1]


def test_a_symbolic_reduction_is_depth_and_no_tiles():
    kernel = MicroKernel(granules=(16, 32), workers=1, reduction_axis=1)
    found = features(kernel, np.array([[32, 65], [32, 64]]))
    assert found.tiles.tolist() == [2, 2]
    assert found.depth.tolist() == [3, 2]
    assert found.padding.tolist() == [65 / 96, 1]


@given(
    st.floats(0, 1e-4),
    st.floats(1e-7, 1e-4),
    st.floats(0, 1e-5),
    st.integers(1, 64),
    st.integers(1, 9),
    st.sets(st.integers(1, 512), min_size=2, max_size=8),
)
def test_measured_instances_are_reproduced(launch, tile, step, granule, workers, measured):
    kernel = MicroKernel((granule, 8), workers, reduction_axis=1)
    extents = np.concatenate([_SEQ, 513 - _SEQ], axis=1)
    found = features(kernel, extents)
    noise = 1 + 0.1 * np.sin(np.arange(len(extents)))
    times = (launch + found.waves * (tile + step * found.depth)) * noise
    rows = np.array(sorted(measured)) - 1
    model = fit(features(kernel, extents[rows]), times[rows])
    assert min(model.launch_s, model.tile_s, model.step_s) >= 0
    predicted = model.predict(found)
    assert (predicted > 0).all()
    np.testing.assert_allclose(predicted[rows], times[rows], rtol=1e-9)


def test_terms_are_found_again_of_enough_instances_and_foretell_all_others():
    kernel = MicroKernel((16, 16), 4, reduction_axis=1)
    extents = np.stack(np.meshgrid(np.arange(1, 130, 3), np.arange(8, 400, 16)), axis=-1).reshape(-1, 2)
    found = features(kernel, extents)
    times = 3e-6 + found.waves * (2e-6 + 5e-7 * found.depth)
    rows = np.random.default_rng(0).choice(len(extents), 6, replace=False)
    model = fit(features(kernel, extents[rows]), times[rows])
    assert (model.launch_s, model.tile_s, model.step_s) == pytest.approx((3e-6, 2e-6, 5e-7), rel=1e-6)
    np.testing.assert_allclose(model.predict(found), times, rtol=1e-6)


def test_two_instances_of_one_extent_give_launch_and_tiles():
    kernel = MicroKernel((16,), 1)
    found = features(kernel, _SEQ)
    times = 5e-6 + found.waves * 1e-6
    rows = [15, 399]
    np.testing.assert_allclose(fit(features(kernel, _SEQ[rows]), times[rows]).predict(found), times, rtol=1e-6)


def test_two_instances_of_as_many_waves_are_laid_to_tiles_and_not_to_the_launch():
    kernel = MicroKernel((64,), 1)
    model = fit(features(kernel, _SEQ[[3, 60]]), np.array([1e-5, 1e-5]))
    assert model.predict(features(kernel, np.array([[128]]))) == pytest.approx(2e-5)


def test_one_instance_scales_the_prior():
    kernel = MicroKernel((16,), 2)
    prior = 1e-6 + 1e-8 * _SEQ[:, 0]
    one = features(kernel, _SEQ[[99]], predicted_s=prior[[99]])
    model = fit(one, np.array([6e-6]))
    np.testing.assert_allclose(model.predict(features(kernel, _SEQ, predicted_s=prior)), 3 * prior)
    with pytest.raises(ValueError, match="predicted_s"):
        model.predict(features(kernel, _SEQ))


def test_one_instance_without_a_prior_scales_waves():
    kernel = MicroKernel((16,), 2)
    found = features(kernel, _SEQ)
    model = fit(features(kernel, _SEQ[[511]]), np.array([32e-6]))
    np.testing.assert_allclose(model.predict(found), found.waves * 2e-6)


def test_no_instance_is_faster_than_memory_and_such_ones_say_nothing_of_tiles():
    kernel = MicroKernel((1,), 1)
    moved = np.where(_SEQ[:, 0] <= 100, 1e6, 1.0)
    found = features(kernel, _SEQ, bytes_moved=moved, bandwidth_bytes_per_s=1e9)
    times = np.maximum(_SEQ[:, 0] * 1e-6, found.floor_s)
    rows = [9, 19, 199, 399]
    some = features(kernel, _SEQ[rows], bytes_moved=moved[rows], bandwidth_bytes_per_s=1e9)
    np.testing.assert_allclose(fit(some, times[rows]).predict(found), times, rtol=1e-6)


def test_the_instances_to_measure_are_those_of_most_and_of_fewest_waves_without_padding():
    found = features(MicroKernel((16,), 4), _SEQ)
    many, one, between = to_measure(found, 3)
    assert (many + 1, one + 1) == (512, 64)
    assert found.waves[[many, one, between]].tolist() == [8, 1, 3]
    assert found.f_adapt[between] == 1


def test_a_symbolic_reduction_is_measured_short_and_long():
    extents = np.stack(np.meshgrid([16, 64], [8, 64, 512]), axis=-1).reshape(-1, 2)
    some = to_measure(features(MicroKernel((16, 8), 1, reduction_axis=1), extents), 3)
    assert extents[some].tolist() == [[64, 512], [16, 8], [16, 64]]


def test_instances_that_are_alike_are_measured_once():
    found = features(MicroKernel((16,), 1), _SEQ[:32])
    assert to_measure(found, 9) == [31, 15]


def test_what_the_terms_miss_is_interpolated_between_instances():
    kernel = MicroKernel((1,), 1)
    rows = [0, 3, 15]  # extents 1, 4, 16: 2 lies in the middle of the first two, in logarithms
    times = np.array([1e-6, 8e-6, 16e-6])
    model = fit(features(kernel, _SEQ[rows]), times)
    modelled = model.launch_s + model.tile_s * np.arange(1, 17) + model.step_s * np.arange(1, 17)
    ratios = model.predict(features(kernel, _SEQ[:16])) / modelled
    assert ratios[1] == pytest.approx(np.sqrt(ratios[0] * ratios[3]))
    assert ratios[7] == pytest.approx(np.sqrt(ratios[3] * ratios[15]))


def test_several_measurements_of_an_instance_are_their_mean():
    kernel = MicroKernel((16,), 2)
    model = fit(features(kernel, np.array([[32], [32], [64]])), np.array([1e-6, 4e-6, 4e-6]))
    assert model.predict(features(kernel, np.array([[32], [64]]))) == pytest.approx([2e-6, 4e-6])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"granules": (0,), "workers": 1}, "positive"),
        ({"granules": (1,), "workers": 0}, "positive"),
        ({"granules": (1,), "workers": 1, "reduction_axis": 1}, "reduction axis"),
    ],
)
def test_kernels_that_make_no_sense(arguments, said):
    with pytest.raises(ValueError, match=said):
        MicroKernel(**arguments)


@pytest.mark.parametrize("extents", [np.array([[0]]), np.array([[1, 2]]), np.array([1, 2])])
def test_extents_that_make_no_sense(extents):
    with pytest.raises(ValueError, match="rows of 1 positive"):
        features(MicroKernel((1,), 1), extents)


@pytest.mark.parametrize(
    ("times", "said"), [([1e-6], "as many times"), ([1e-6, np.inf], "positive"), ([1e-6, 0], "positive")]
)
def test_times_that_make_no_sense(times, said):
    with pytest.raises(ValueError, match=said):
        fit(features(MicroKernel((1,), 1), np.array([[1], [2]])), np.array(times))


def test_steps_of_what_is_added_up_along_the_same_extent():
    """Attention on a GPU: tiles of rows are computed at once, and a tile takes a step for every 64 keys."""
    extents = np.array([[20], [49], [78], [125], [200]])
    found = features(MicroKernel((1,), 1, is_shared_finely=True, step=64), extents)
    assert found.depth.tolist() == [1, 1, 2, 2, 4]
    model = fit(found, 1e-6 * np.array([2.0, 2.0, 3.5, 3.5, 6.5]))
    wanted = features(MicroKernel((1,), 1, is_shared_finely=True, step=64), np.array([[64], [65], [128], [192]]))
    assert model.predict(wanted) == pytest.approx(1e-6 * np.array([2.0, 3.5, 3.5, 5.0]))
