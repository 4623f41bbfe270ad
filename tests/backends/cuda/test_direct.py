"""The general schedule of a single reduction on a GPU: what it computes, and that it is for what no family takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.test_values import check

A100 = CUDA("A100")
LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def products() -> Workload:
    """A batch of vectors times matrices."""
    return workloads.build(lambda emit, a, b: op.matmul(a, b), [(6, 1, 19), (6, 19, 24)], dtype="float16")


def one_channel() -> Workload:
    """A 3x3 convolution of 5x7 pixels to one channel, and a clip."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        return op.nn.relu(emit(op.nn.conv2d(x, w, padding=1, **LAYOUTS)))

    return workloads.build(body, [(1, 5, 7, 10)], [(1, 3, 3, 10)], "float16")


def large_window() -> Workload:
    """A depthwise convolution of 9x9 taps over 11x6 pixels of 8 channels, with a bias."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return op.add(emit(op.nn.conv2d(x, w, padding=4, groups=8, **LAYOUTS)), b)

    return workloads.build(body, [(1, 11, 6, 8)], [(8, 9, 9, 1), (1, 1, 1, 8)])


def planes(stride: int) -> Workload:
    """A depthwise convolution of channels first: 3x3 taps, planes of 9x13, halves in and out."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        wide = [emit(op.astype(one, "float32")) for one in (x, w)]
        return op.astype(emit(op.nn.conv2d(*wide, strides=stride, padding=1, groups=6)), "float16")

    return workloads.build(body, [(2, 6, 9, 13)], [(6, 1, 3, 3)], "float16")


def pooled_planes() -> Workload:
    return workloads.build(lambda emit, x: op.nn.max_pool2d(x, (3, 2), (2, 1), (1, 0)), [(3, 5, 9, 13)])


CASES = {
    "planes": (planes(1), {"lanes": 1, "rows": 4, "unroll": 9}),
    "planes, apart": (planes(2), {"lanes": 7, "rows": 2, "unroll": 9}),
    "pooled planes": (pooled_planes(), {"lanes": 4, "rows": 2, "unroll": 6}),
    "vectors times matrices": (products(), {"lanes": 8, "unroll": 4}),
    "one channel, shared sums": (one_channel(), {"lanes": 1, "rows": 2, "share": 8, "unroll": 4}),
    "one channel, sums of a block": (one_channel(), {"lanes": 1, "share": 64}),
    "large window, packed, overlapping rows": (large_window(), {"lanes": 4, "rows": 4, "unroll": 3}),
}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, tmp_path: Path) -> None:
    workload, knobs = CASES[name]
    kernel = backends.schedule(workload, Candidate.make("cuda.direct", threads=64, **knobs), A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_its_candidates_are_kernels(name: str) -> None:
    workload, _ = CASES[name]
    found = [c for c in backends.candidates(workload, A100, 20) if c.family == "cuda.direct"]
    assert found
    assert all(isinstance(backends.schedule(workload, candidate, A100), Kernel) for candidate in found[:3])


def test_depthwise_weights_are_packed_by_channel() -> None:
    workload, knobs = CASES["large window, packed, overlapping rows"]
    kernel = backends.schedule(workload, Candidate.make("cuda.direct", threads=64, **knobs), A100)
    assert isinstance(kernel, Kernel)
    assert [packing.order for _, packing in kernel.packings] == [(1, 2, 3, 0)]


def test_what_has_a_family_is_left_to_it() -> None:
    for workload in (workloads.dense(64, 64, 64), workloads.conv(8, 8, 16, 3), workloads.softmax(4, 8)):
        assert all(candidate.family != "cuda.direct" for candidate in backends.candidates(workload, A100, 50))


def test_what_does_not_divide_says_so() -> None:
    found = backends.schedule(products(), Candidate.make("cuda.direct", threads=64, lanes=16), A100)
    assert isinstance(found, NotApplicable)
