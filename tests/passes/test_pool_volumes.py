"""Pools of volumes: one kernel where windows hardly overlap, pools of images where they do, in either layout."""

import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.layout_nhwc import channels_to_last
from subtune.passes.pool_volumes import pool_volumes

POOLS = {"max": op.nn.max_pool3d, "mean": op.nn.avg_pool3d}


def pooled(module, kind, kernel, strides, *, count_pads=False, dilation=(1, 1, 1), is_turned=False):
    dims = (2, 6, 8, 9, 3) if is_turned else (2, 3, 6, 8, 9)
    pads = [k // 2 if k > 1 and s == 1 else 0 for k, s in zip(kernel, strides, strict=True)]

    def body(x):
        planes = relax.op.permute_dims(x, (0, 4, 1, 2, 3)) if is_turned else x
        y = POOLS[kind](planes, kernel, strides, pads * 2, dilation, count_include_pad=count_pads)
        return relax.op.permute_dims(y, (0, 2, 3, 4, 1)) if is_turned else y

    return module([(dims, "float32")], body)


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize("kind", ["max", "mean"])
@pytest.mark.parametrize(
    ("kernel", "strides", "images"),
    [
        ((3, 3, 3), (1, 1, 1), 2),
        ((5, 5, 5), (1, 1, 1), 2),
        ((3, 3, 3), (1, 2, 2), 2),
        ((2, 2, 2), (2, 2, 2), 0),
        ((3, 3, 3), (2, 2, 2), 0),
        ((1, 3, 3), (1, 1, 1), 1),
        ((1, 2, 2), (1, 2, 2), 1),
        ((3, 1, 1), (1, 1, 1), 1),
        ((1, 1, 1), (1, 1, 1), 0),
    ],
)
@pytest.mark.grid
def test_windows_that_overlap_are_those_of_images(module, ops, agree, kind, kernel, strides, images, is_turned):
    before = pooled(module, kind, kernel, strides, is_turned=is_turned)
    after = pool_volumes(channels_to_last(before))
    names = ops(after)
    assert sum(count for name, count in names.items() if "pool2d" in name) == images, names
    is_whole = images == 0 and max(kernel) > 1
    assert sum(count for name, count in names.items() if "pool3d" in name) == is_whole, names
    agree(before, after, 1e-5)


@pytest.mark.parametrize("count_pads", [False, True])
def test_a_mean_of_means_counts_the_same_elements(module, agree, ops, count_pads):
    before = pooled(module, "mean", (3, 3, 3), (1, 1, 1), count_pads=count_pads)
    after = pool_volumes(before)
    assert ops(after)["nn.avg_pool2d"] == 2
    agree(before, after, 1e-5)


def test_dilated_maxima(module, agree, ops):
    before = pooled(module, "max", (3, 3, 3), (1, 1, 1), dilation=(1, 2, 2))
    after = pool_volumes(before)
    assert ops(after)["nn.max_pool2d"] == 2
    agree(before, after)


def test_channels_stay_last(module, ops):
    before = pooled(module, "mean", (2, 2, 2), (2, 2, 2), is_turned=True)
    assert ops(pool_volumes(channels_to_last(before)))["permute_dims"] == 0


def test_small_windows_on_planes_are_split_where_there_are_no_others(module, ops, agree):
    """Eight taps take less time than to write what is between; of these a CPU has no schedule but loops."""

    def body(x):
        return op.nn.avg_pool3d(x, (2, 2, 2), (1, 1, 1), (1, 1, 1), layout="NCDHW", count_include_pad=False)

    before = module([((2, 3, 6, 7, 8), "float32")], body)
    assert pool_volumes(before).same_as(before)
    after = pool_volumes(before, always_in_planes=True)
    assert ops(after)["nn.avg_pool2d"] == 2
    agree(before, after)
