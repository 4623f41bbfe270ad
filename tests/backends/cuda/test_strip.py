"""Depthwise convolutions and pooling by strips."""

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

H200 = CUDA("H200")


def depthwise(
    kernel: int, stride: int = 1, dilation: int = 1, dtype: str = "float16", size: int = 13, times: int = 1
) -> Workload:
    """[2, size, size - 2, 8], padded to keep the size at stride 1, in float32 but for what is read and written.

    Args:
        times: results of a channel.
    """
    pad = kernel // 2 * dilation

    def full(emit: Any, value: Any) -> Any:
        return emit(op.astype(value, "float32")) if dtype != "float32" else value

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        found = emit(op.nn.conv2d(full(emit, x), full(emit, w), strides=stride, padding=pad, dilation=dilation,
                                  groups=8, data_layout="NHWC", kernel_layout="OHWI"))  # fmt: skip
        found = op.nn.silu(emit(op.add(found, full(emit, b))))
        return op.astype(emit(found), dtype) if dtype != "float32" else found

    return workloads.build(body, [(2, size, size - 2, 8)], [(8 * times, kernel, kernel, 1), (8 * times,)], dtype=dtype)


def pool(kind: str, kernel: int, stride: int) -> Workload:
    def body(emit: Any, x: Any) -> Any:
        return getattr(op.nn, kind)(x, (kernel, kernel), strides=stride, padding=kernel // 2, layout="NHWC")

    return workloads.build(body, [(1, 13, 12, 8)], dtype="float16")


CASES = {
    "7x7": (lambda: depthwise(7), (2, 2, 3)),
    "5x5 strided float32": (lambda: depthwise(5, 2, dtype="float32"), (2, 2, 3)),
    "two results a channel": (lambda: depthwise(5, times=2), (4, 2, 3)),
    "three results a channel, strided": (lambda: depthwise(3, 2, dtype="float32", times=3), (2, 1, 2)),
    "maximum": (lambda: pool("max_pool2d", 5, 1), (2, 2, 3)),
}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, tmp_path: Path) -> None:
    make, (lanes, rows, cols) = CASES[name]
    workload = make()
    candidate = Candidate.make("cuda.strip", threads=64, lanes=lanes, rows=rows, cols=cols)
    kernel = backends.schedule(workload, candidate, H200)
    assert isinstance(kernel, Kernel), kernel
    check(workload, kernel, H200, tmp_path)


def test_large_windows_have_candidates() -> None:
    found = backends.candidates(depthwise(31, size=32), H200, 20)
    assert "cuda.strip" in {candidate.family for candidate in found}


def test_rows_of_a_dilated_window_share_nothing() -> None:
    candidate = Candidate.make("cuda.strip", threads=64, lanes=4, rows=2, cols=4)
    assert isinstance(backends.schedule(depthwise(5, 1, 2), candidate, H200), NotApplicable)


def test_a_depthwise_convolution_with_a_multiplier_is_one() -> None:
    """As a grouped product it was predicted, and is, forty times slower."""
    found = backends.candidates(depthwise(7, size=32, times=2), H200, 20)
    assert found[0].family == "cuda.strip"
