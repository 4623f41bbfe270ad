"""Kernels whose last tile of vectors overlaps the one before it serve no extent that is less than a vector."""

from __future__ import annotations

from dataclasses import replace

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.kernel import NotApplicable
from subtune.dynamic.kernel import dynamic_kernel
from tests.backends.workloads import batch_matmul
from tests.dynamic.flat_kernels import of_rows

DEVICE = as_device(CPU("x86-64-v3", threads=1))


def test_a_right_factor_that_is_turned_in_vectors_along_what_is_summed():
    workload = of_rows(lambda k: batch_matmul(1, 3, 18, k, transposed=True))
    candidate = next(one for one in backends.candidates(workload.at((19,)), DEVICE, 8) if one.family == "contraction")
    by_least = {k: dynamic_kernel(replace(workload, least=(k,)), candidate, DEVICE) for k in (1, 7, 8, 9)}
    refused = {k for k, found in by_least.items() if isinstance(found, NotApplicable)}
    assert refused == {1, 7}, "vectors have eight elements"
    assert "in front of its own memory" in by_least[1].reason
