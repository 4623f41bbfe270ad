"""Reductions of several values at once on a GPU: ArgMax over channels first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm.relax import op

from subtune import backends
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.test_values import check

A100 = CUDA("A100")


def largest(shape: tuple[int, ...], axis: int) -> Workload:
    def body(emit: Any, x: Any) -> Any:
        return op.argmax(x, axis=axis)

    return workloads.build(body, [shape])


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize(("shape", "axis", "unroll"), [((2, 7, 5, 9), 1, 1), ((16, 37), 0, 4)])
def test_values(shape: tuple[int, ...], axis: int, unroll: int, tmp_path: Path) -> None:
    workload = largest(shape, axis)
    knobs = {"unroll": unroll} if unroll > 1 else {}
    kernel = backends.schedule(workload, Candidate.make("cuda.each", threads=64, **knobs), A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


def test_it_is_for_several_values() -> None:
    found = backends.candidates(largest((4, 21, 64, 64), 1), A100, 20)
    assert any(candidate.family == "cuda.each" for candidate in found)
    found = backends.candidates(workloads.softmax(4, 8), A100, 20)
    assert all(candidate.family != "cuda.each" for candidate in found)
