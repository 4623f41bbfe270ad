import itertools

import numpy as np
import pytest

from subtune.passes.layout_axes import inverse, permuted, reshape_through, unpermuted, without

NCHW_OF_NHWC = (0, 3, 1, 2)


def test_inverse_and_permuted_agree_with_numpy():
    for p in itertools.permutations(range(4)):
        array = np.zeros((2, 3, 5, 7))
        assert permuted(array.shape, p) == array.transpose(p).shape
        assert array.transpose(p).transpose(inverse(p)).shape == array.shape
        assert unpermuted(permuted((1, 2, 3, 4), p), p) == (1, 2, 3, 4)


def test_without_is_the_permutation_of_what_is_left():
    array = np.arange(2 * 3 * 5 * 7).reshape(2, 3, 5, 7)
    for p in itertools.permutations(range(4)):
        for removed in ((0,), (2,), (1, 3)):
            below = tuple(p[axis] for axis in removed)
            np.testing.assert_array_equal(
                array.transpose(p).sum(removed), array.sum(below).transpose(without(p, removed))
            )


POSSIBLE = [
    ((2, 3, 5, 8), NCHW_OF_NHWC, (2, 8, 15)),  # H and W into one axis
    ((2, 3, 5, 8), NCHW_OF_NHWC, (2, 4, 2, 3, 5)),  # channels into groups
    ((2, 1, 1, 8), NCHW_OF_NHWC, (2, 8)),  # flatten after global pooling
    ((2, 3, 5, 8), NCHW_OF_NHWC, (2, 8, 3, 5, 1)),
    ((1, 3, 5, 8), NCHW_OF_NHWC, (8, 3, 5)),
    ((1, 6, 4), (0, 2, 1), (1, 2, 2, 3, 2)),
]


@pytest.mark.parametrize(("source", "p", "target"), POSSIBLE)
def test_reshapes_that_pass(source, p, target):
    array = np.arange(np.prod(source)).reshape(source)
    shape, q = reshape_through(source, p, target)
    np.testing.assert_array_equal(array.transpose(p).reshape(target), array.reshape(shape).transpose(q))


@pytest.mark.parametrize("target", [(2, 120), (16, 15), (2, 24, 5), (240,)])
def test_reshapes_that_mix_separated_axes_do_not_pass(target):
    assert reshape_through((2, 3, 5, 8), NCHW_OF_NHWC, target) is None


def test_every_answer_is_right_on_small_shapes():
    """All permutations of small shapes with unit dims, against all factorisations of as many elements."""
    targets = [(12,), (1, 12), (2, 6), (4, 3), (2, 2, 3), (3, 2, 2), (2, 1, 6), (1, 4, 3), (2, 2, 1, 3)]
    passed = 0
    for source in [(2, 2, 3), (4, 3, 1), (1, 2, 6), (2, 1, 2, 3), (1, 12, 1)]:
        array = np.arange(12).reshape(source)
        for p in itertools.permutations(range(len(source))):
            for target in targets:
                through = reshape_through(source, p, target)
                if through is None:
                    continue
                passed += 1
                moved = array.reshape(through[0]).transpose(through[1])
                np.testing.assert_array_equal(array.transpose(p).reshape(target), moved)
    assert passed > 100
