"""Grouped convolutions on a GPU: a product for every few groups, its weights zero off the diagonal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.algorithms.grouped import Diagonal, merged
from subtune.backends.cuda.device import CUDA
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.test_values import check

A100 = CUDA("A100")


def grouped(groups: int, of_input: int, of_output: int, dtype: str = "float16", stride: int = 1) -> Workload:
    """A 3x3 convolution of 4x5 pixels, channels last, with a bias."""

    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
        y = emit(op.nn.conv2d(x, w, strides=stride, padding=1, groups=groups, **layouts))
        return op.nn.relu(emit(op.add(y, b)))

    columns = groups * of_output
    return workloads.build(body, [(1, 4, 5, groups * of_input)], [(columns, 3, 3, of_input), (1, 1, 1, columns)], dtype)


CASES = {
    "several groups to a product": (grouped(4, 8, 8), "cuda.grouped_mma", 2, 0),
    "odd, stride 2": (grouped(3, 5, 7, stride=2), "cuda.grouped_mma", 1, 0),
    "products of 24 columns": (grouped(4, 8, 24), "cuda.grouped_mma", 1, 0),
    "zeros behind the channels": (grouped(3, 24, 8), "cuda.grouped_mma", 1, 32),
    "zeros behind two groups": (grouped(4, 24, 7, stride=2), "cuda.grouped_mma", 2, 64),
    "float32": (grouped(4, 4, 6, "float32"), "cuda.grouped_simt", 2, 0),
}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, tmp_path: Path) -> None:
    workload, family, merge, depth = CASES[name]
    found = [c for c in backends.candidates(workload, A100, 100) if c.family == family]
    chosen = next(c for c in found if (c.get("merge") or 1, c.get("depth") or 0) == (merge, depth))
    kernel = backends.schedule(workload, chosen, A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


def test_weights_become_block_diagonal() -> None:
    weights = np.arange(1, 13, dtype="float32").reshape(4, 1, 3)  # two groups of two columns and three channels
    packed = Diagonal((4, 1, 3), column=0, depth=2, per_group=2, merge=2, channels=6)(weights)
    assert packed.shape == (1, 4, 1, 6)
    np.testing.assert_array_equal(packed[0, :2, 0, :3], weights[:2, 0])
    np.testing.assert_array_equal(packed[0, 2:, 0, 3:], weights[2:, 0])
    assert np.count_nonzero(packed) == 12
    padded = Diagonal((4, 1, 3), column=0, depth=2, per_group=2, merge=2, channels=8)(weights)
    np.testing.assert_array_equal(padded[..., :6], packed)
    assert padded.shape == (1, 4, 1, 8)
    assert not padded[..., 6:].any()


def test_what_is_no_grouped_convolution() -> None:
    for workload in (workloads.conv(5, 4, 4, 3), workloads.softmax(4, 8), grouped(3, 2, 2)):
        assert isinstance(merged(workload, 2), NotApplicable)
