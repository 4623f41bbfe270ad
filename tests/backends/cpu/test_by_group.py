"""Grouped convolutions whose groups no vector divides: padded group by group, and right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.loops.by_group import GroupPacking
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable, Packing
from subtune.core.workload import Workload
from tests.backends.workloads import build, conv

Run = Callable[[Workload, Kernel | None], np.ndarray]

NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def bare(size: int, channels: int, columns: int, groups: int) -> Workload:
    """A convolution that is an output itself."""
    return build(
        lambda emit, x, w: op.nn.conv2d(x, w, padding=1, groups=groups, **NHWC),
        [(1, size, size, channels)],
        [(columns, 3, 3, channels // groups)],
    )


CASES: dict[str, Callable[[], Workload]] = {
    "23 columns to a group": lambda: conv(7, 4, 46, 3, groups=2),
    "5 columns to a group, stride 2": lambda: conv(9, 48, 15, 3, stride=2, groups=3),
    "12 columns to a group, 1x1": lambda: conv(6, 21, 36, 1, groups=3),
    "42 columns to a group, two images": lambda: conv(5, 6, 84, 3, groups=2, batch=2),
    "no epilogue": lambda: bare(6, 6, 21, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_padded_groups_are_right(case: str, run: Run, device: CPUModel) -> None:
    workload = CASES[case]()
    expected = run(workload, None)
    proposed = [c for c in backends.candidates(workload, device, topk=200) if c.get("by_group")]
    assert proposed
    seen = {c.get("order"): c for c in proposed}
    for candidate in [*proposed[:2], *seen.values(), proposed[-1]]:
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
        np.testing.assert_allclose(run(workload, kernel), expected, rtol=0, atol=3e-6 * np.abs(expected).max())


def test_columns_of_a_group_are_vectors(device: CPUModel) -> None:
    """And so are no candidates of narrower ones, where the widest that divide them are of an element or two."""
    lanes = device.lanes()
    found = [c for c in backends.candidates(conv(7, 4, 46, 3, groups=2), device, 99) if c.family == "contraction"]
    assert {c.get("nr") % lanes for c in found} == {0}
    found = [c for c in backends.candidates(conv(7, 4, 8 * lanes, 3, groups=2), device, 99) if c.get("by_group")]
    assert not found


def test_weights_are_taken_apart_by_group_and_padded() -> None:
    array = np.arange(2 * 3 * 5, dtype="float32").reshape(6, 5)
    packing = GroupPacking(2, Packing(((2,), (1, 4), (5,)), (0, 1, 3, 2)))
    packed = packing(array)
    assert packed.shape == packing.shape == (2, 1, 5, 4)
    np.testing.assert_array_equal(packed[1, 0, :, :3], array[3:].T)
    assert not packed[..., 3].any()


def test_what_has_no_groups_stays(device: CPUModel) -> None:
    workload = conv(7, 8, 24, 3)
    kernel = backends.schedule(
        workload, Candidate.make("contraction", mr=7, nr=16, mt=1, order="m", by_group=True), device
    )
    assert isinstance(kernel, NotApplicable)
    assert "no groups" in kernel.reason
