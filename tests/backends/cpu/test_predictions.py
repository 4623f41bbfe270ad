"""Predictions order candidates and rule out alternatives, so each has to be near what the hardware can do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.workload import Workload
from subtune.tuning.order import bound_s
from tests.backends.workloads import (
    batch_matmul,
    conv,
    dense,
    global_pool,
    layer_norm,
    matmul,
    max_pool,
    softmax,
)

CASES: dict[str, Callable[[], Workload]] = {
    "convolution": lambda: conv(28, 64, 64, 3),
    "pointwise": lambda: conv(28, 64, 256, 1),
    "depthwise": lambda: conv(56, 96, 96, 3, groups=96),
    "dense": lambda: dense(128, 768, 768),
    "product": lambda: matmul(256, 256, 256),
    "attention scores": lambda: batch_matmul(12, 128, 128, 64, transposed=True),
    "scores of one token": lambda: batch_matmul(24, 1, 640, 128, transposed=True),
    "softmax": lambda: softmax(1536, 512),
    "layer norm": lambda: layer_norm(1024, 768),
    "max pool": lambda: max_pool(112, 64),
    "global pool": lambda: global_pool(28, 512),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("target", ["znver4", "haswell"])
def test_the_best_of_every_family_is_near_the_roofline(case: str, target: str, threads: int) -> None:
    workload, device = CASES[case](), as_device(CPU(target, threads=threads))
    best: dict[str, float] = {}
    for candidate in backends.candidates(workload, device, 200):
        best[candidate.family] = min(candidate.predicted_s, best.get(candidate.family, candidate.predicted_s))
    possible_s = bound_s(workload, device)
    assert best
    for family, predicted_s in best.items():  # 0.2 to 8 when this was written; what lies in a cache is read faster
        assert 0.05 < predicted_s / possible_s < 12, family
