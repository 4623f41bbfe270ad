"""Convolutions of padded images on a CPU: rows of zeros are not multiplied, and the rest is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.skipped_rows import kept
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.workloads import build

Run = Callable[[Workload, Kernel | None], np.ndarray]


def convolution(rows: int, taps: int, pad: int, dilation: int = 1, stride: int = 1, columns: int = 12) -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        y = op.nn.conv2d(
            x, w, strides=stride, padding=pad, dilation=dilation, data_layout="NHWC", kernel_layout="OHWI",
            out_layout="NHWC",
        )  # fmt: skip
        return op.nn.relu(emit(op.add(emit(y), b)))

    return build(body, [(2, rows, columns, 5)], [(48, taps, taps, 5), (1, 1, 1, 48)])


# the share of products that is left: rows of the window that are in the image, of all
CASES = {
    "seven rows": (lambda: convolution(7, 3, 1), 19 / 21),
    "a dilated window on seven rows": (lambda: convolution(7, 5, 4, 2), 23 / 35),
    "strides": (lambda: convolution(9, 3, 1, 1, 2), 13 / 15),
    "strides and dilation": (lambda: convolution(8, 3, 3, 3, 2), 9 / 12),
    "more padding than image": (lambda: convolution(2, 3, 4, 4), 2 / 6),
    "rows of nothing but padding": (lambda: convolution(3, 1, 2), 3 / 7),
    "no padding": (lambda: convolution(7, 3, 0), 1.0),
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_are_right_and_the_share_is_counted(case: str, run: Run, device: CPUModel) -> None:
    make, share = CASES[case]
    workload = make()
    assert kept(workload.func, 2) == pytest.approx(share)
    want = run(workload, None)
    for order in ("m", "n", "mn"):
        candidate = Candidate.make("contraction", mr=6, nr=32, mt=1, order=order)
        kernel = backends.schedule(workload, candidate, device)
        if isinstance(kernel, NotApplicable):  # rows of fewer than six pixels
            continue
        assert ("T.max(T.min(" in kernel.func.script()) == (share < 1)
        np.testing.assert_allclose(run(workload, kernel), want, rtol=1e-4, atol=1e-5)


def test_what_is_skipped_is_predicted(device: CPUModel) -> None:
    """Of the same number of products, a third less is multiplied."""

    def seconds(workload: Workload) -> float:
        return min(c.predicted_s for c in backends.candidates(workload, device, topk=40) if c.family == "contraction")

    padded, whole = convolution(14, 5, 8, 4, columns=96), convolution(30, 5, 0, 4, columns=96)
    assert kept(padded.func, 2) < 0.7
    assert kept(whole.func, 2) == 1
    assert seconds(padded) < 0.85 * seconds(whole)
