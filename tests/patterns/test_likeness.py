"""How alike workloads are, by what they compute and by the ratios of their loops."""

from __future__ import annotations

import math

import pytest
from tvm import te, tirx

from subtune import models
from subtune.core.workload import CONSTANT_ARGS_ATTR, Workload
from subtune.patterns.likeness import OTHER_BODY, likeness
from subtune.pipeline import prepare


def product(m: int, n: int, k: int, dtype: str = "float32", relu: bool = False) -> Workload:
    a, b = te.placeholder((m, k), dtype, name="a"), te.placeholder((k, n), dtype, name="b")
    axis = te.reduce_axis((0, k), name="k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, axis] * b[axis, j], axis=axis), name="c")
    out = te.compute((m, n), lambda i, j: tirx.max(c[i, j], tirx.const(0, dtype)), name="d") if relu else c
    func = te.create_prim_func([a, b, out], index_dtype_override="int64")
    return Workload.of(func.with_attr(CONSTANT_ARGS_ATTR, [1]), 1)


def mapped(n: int, function) -> Workload:
    a = te.placeholder((n,), "float32", name="a")
    return Workload.of(te.create_prim_func([a, te.compute((n,), lambda i: function(a[i]))]), 1)


def distance(one: Workload, other: Workload) -> float:
    there, back = likeness(one).distance(likeness(other)), likeness(other).distance(likeness(one))
    assert there == pytest.approx(back)
    return there


@pytest.mark.parametrize(
    ("shape", "doublings"),
    [((64, 64, 64), 0.0), ((128, 64, 64), 1.0), ((128, 32, 256), 4.0), ((96, 64, 64), math.log2(1.5))],
)
def test_a_distance_is_in_doublings_of_loops(shape: tuple[int, int, int], doublings: float) -> None:
    assert distance(product(64, 64, 64), product(*shape)) == pytest.approx(doublings)


def test_another_epilogue_is_some_way_off_and_another_type_is_strange() -> None:
    assert distance(product(64, 64, 64), product(64, 128, 64, relu=True)) == 1.0 + OTHER_BODY
    assert distance(product(64, 64, 64), product(64, 64, 64, dtype="float64")) == math.inf


def test_what_is_not_a_product_is_near_only_where_it_computes_the_same() -> None:
    doubled, halved = mapped(64, lambda x: x * 2), mapped(64, lambda x: x / 2)
    assert distance(doubled, mapped(256, lambda x: x * 2)) == 2.0
    assert distance(doubled, mapped(256, lambda x: x * 3)) == 2.0, "numbers do not count"
    assert distance(doubled, halved) == math.inf
    assert distance(doubled, product(8, 8, 8)) == math.inf


def test_a_strided_convolution_is_as_far_from_another_as_its_loops_and_its_stride() -> None:
    """Layers of one network differ by numbers alone; its kernels of 3 x 3 and of 1 x 1 are of one kind."""
    found = [likeness(one.workload) for one in prepare(models.reduced("resnet18")).subgraphs]
    convolutions = [one for one in found if one.kind.startswith("Contraction") and one.extents[1] > 1]
    assert len({one.kind for one in convolutions}) == 1
    taps, strides = {one.extents[4] for one in convolutions}, {one.extents[5] for one in convolutions}
    assert (taps, strides) == ({1, 9, 49}, {1, 4})
