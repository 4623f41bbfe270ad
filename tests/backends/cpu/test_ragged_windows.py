"""Depthwise convolutions and pools of channels that no vector divides: the last vector overlaps its neighbour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.workloads import build

Run = Callable[[Workload, Kernel | None], np.ndarray]


def depthwise(size: int, channels: int, taps: int, dilation: int = 1, *, bare: bool = False) -> Workload:
    """With a bias, a residual and an activation, or `bare`; padded to keep its size."""
    pad = taps // 2 * dilation
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}

    def conv(emit: Any, x: Any, w: Any) -> Any:
        return op.nn.conv2d(x, w, padding=pad, dilation=dilation, groups=channels, **layouts)

    def body(emit: Any, x: Any, residual: Any, w: Any, b: Any) -> Any:
        y = emit(op.add(emit(conv(emit, x, w)), b))
        return op.nn.relu(emit(op.add(y, residual)))

    shape, weights = (2, size, size, channels), (channels, taps, taps, 1)
    if bare:
        return build(conv, [shape], [weights])
    return build(body, [shape, shape], [weights, (1, 1, 1, channels)])


def pool(kind: str, size: int, channels: int, pad: int) -> Workload:
    make = getattr(op.nn, f"{kind}_pool2d")
    return build(
        lambda emit, x: make(x, (3, 3), (2, 2), (pad, pad), layout="NHWC", out_layout="NHWC"),
        [(1, size, size, channels)],
    )


CASES = {
    "depthwise, a prime number of channels": lambda: depthwise(8, 59, 3),
    "depthwise, a window that stays a loop, dilated": lambda: depthwise(6, 37, 9, 2),
    "depthwise, nothing after it": lambda: depthwise(6, 19, 3, bare=True),
    "depthwise, fewer channels than lanes": lambda: depthwise(6, 7, 3),
    "depthwise, one more than a block": lambda: depthwise(4, 145, 3),
    "max pool": lambda: pool("max", 9, 50, 1),
    "max pool, nothing padded": lambda: pool("max", 9, 21, 0),
    "average pool": lambda: pool("avg", 9, 35, 1),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.grid
def test_candidates_are_right(case: str, run: Run, device: CPUModel) -> None:
    workload = CASES[case]()
    proposed = backends.candidates(workload, device, topk=400)
    found = [c for c in proposed if c.family == "window" and c.get("ragged")]
    assert found, "no candidates"
    expected = run(workload, None)
    blocks = {(c.get("cb"), c.get("inline"), c.get("order")): c for c in found}
    for candidate in blocks.values():
        kernel = backends.schedule(workload, candidate, device)
        assert not isinstance(kernel, NotApplicable), kernel.reason
        np.testing.assert_allclose(run(workload, kernel), expected, rtol=1e-4, atol=1e-4, err_msg=str(candidate))


def test_channels_that_vectors_divide_need_no_overlap(device: CPUModel) -> None:
    proposed = backends.candidates(depthwise(8, 64, 3), device, topk=400)
    found = [c for c in proposed if c.family == "window"]
    assert found
    assert not any(c.get("ragged") for c in found)


def test_ragged_channels_are_computed_in_whole_vectors_first(device: CPUModel) -> None:
    """Of 59 channels no vector divides any."""
    proposed = backends.candidates(depthwise(16, 59, 5), device, topk=20)
    assert next(c for c in proposed if c.family == "window").get("ragged")


def test_a_product_of_planes_is_no_reduction_along_columns(device: CPUModel) -> None:
    """Each of its rows reads all of the columns: what passes over them once cannot compute it."""
    few = build(lambda emit, x, w: op.matmul(w, x), [(1, 256, 4096)], [(16, 256)])
    assert {candidate.family for candidate in backends.candidates(few, device, 20)} == {"window"}
