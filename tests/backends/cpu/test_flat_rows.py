"""Contractions whose rows lie along several axes, scheduled as rows of one: right, in tiles that divide no width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.flat_rows import flat
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.workloads import build, conv

Run = Callable[[Workload, Kernel | None], np.ndarray]

NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def bare(size: int, channels: int, columns: int) -> Workload:
    """A pointwise convolution that is an output itself."""
    return build(
        lambda emit, x, w: op.nn.conv2d(x, w, **NHWC), [(1, size, size, channels)], [(columns, 1, 1, channels)]
    )


def tokens(batch: int, length: int, k: int, n: int) -> Workload:
    """Rows of several sequences times one matrix, and a residual."""
    return build(
        lambda emit, x, rest, w: emit(op.add(emit(op.matmul(x, w)), rest)),
        [(batch, length, k), (batch, length, n)],
        [(k, n)],
    )


CASES: dict[str, tuple[Callable[[], Workload], int]] = {
    "7 x 7 pixels": (lambda: conv(7, 24, 40, 1), 7),
    "two images of 5 x 5 pixels": (lambda: conv(5, 16, 24, 1, batch=2), 5),
    "every second pixel": (lambda: conv(14, 16, 24, 1, stride=2), 7),
    "no epilogue": (lambda: bare(7, 16, 21), 7),
    "three sequences of 7": (lambda: tokens(3, 7, 32, 40), 7),
}


@pytest.mark.parametrize("case", CASES)
def test_flat_rows_are_right(case: str, run: Run, device: CPUModel) -> None:
    made, width = CASES[case]
    workload = made()
    expected = run(workload, None)
    proposed = [c for c in backends.candidates(workload, device, topk=200) if c.family == "contraction"]
    seen = {c.get("order"): c for c in proposed} | {c.get("mr"): c for c in proposed}
    assert any(width % c.get("mr") for c in proposed)
    for candidate in seen.values():
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
        np.testing.assert_allclose(run(workload, kernel), expected, rtol=0, atol=3e-6 * np.abs(expected).max())


def test_windows_that_overlap_and_groups_stay_as_they_are() -> None:
    assert isinstance(flat(conv(7, 8, 16, 3)), NotApplicable)
    found = flat(conv(7, 24, 48, 1, groups=3))
    assert isinstance(found, NotApplicable)
    assert "groups" in found.reason
