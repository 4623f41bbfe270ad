"""Instance and group norm by many blocks of a GPU: what they compute, and when that is proposed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tvm.relax import op

from subtune.backends import candidates, schedule
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.test_values import check
from tests.backends.workloads import build

H100 = CUDA("H100")


def instance_norm(*shape: int) -> Workload:
    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        return op.nn.relu(emit(op.nn.instance_norm(x, g, b, channel_axis=3, axes=[1, 2])))

    return build(body, [shape], [(shape[-1],), (shape[-1],)])


def group_norm(*shape: int) -> Workload:
    def body(emit: Any, x: Any, g: Any, b: Any) -> Any:
        return op.nn.group_norm(x, g, b, 4, channel_axis=3, axes=[1, 2])

    return build(body, [shape], [(shape[-1],), (shape[-1],)])


def tiled(lanes: int, chunks: int, threads: int, runs: int) -> Candidate:
    return Candidate.make("cuda.moments", lanes=lanes, chunks=chunks, threads=threads, runs=runs)


CASES = {
    "a warp shares columns": (instance_norm(2, 8, 8, 16), tiled(4, 4, 16, 2)),
    "a warp for every row": (instance_norm(1, 6, 8, 64), tiled(2, 32, 4, 3)),
    "columns of several blocks": (instance_norm(1, 10, 8, 40), tiled(1, 8, 4, 1)),
    "groups of 8": (group_norm(2, 16, 4, 32), tiled(4, 8, 16, 2)),
    "groups of 10": (group_norm(1, 8, 8, 40), tiled(2, 4, 8, 1)),
    "groups of 40": (group_norm(1, 8, 8, 160), tiled(4, 8, 8, 1)),
    "one part": (instance_norm(3, 4, 4, 32), tiled(4, 8, 8, 2)),
}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, tmp_path: Path) -> None:
    workload, candidate = CASES[name]
    kernel = schedule(workload, candidate, H100)
    assert isinstance(kernel, Kernel), kernel.reason
    check(workload, kernel, H100, tmp_path)


@pytest.mark.parametrize(
    ("workload", "candidate", "reason"),
    [
        (instance_norm(1, 9, 7, 32), tiled(4, 8, 8, 1), "no whole tiles"),
        (instance_norm(1, 9, 7, 32), tiled(4, 8, 21, 1), "no whole warps"),
    ],
)
def test_others_are_refused(workload: Workload, candidate: Candidate, reason: str) -> None:
    refused = schedule(workload, candidate, H100)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


def test_it_comes_first_where_columns_are_few() -> None:
    """And every candidate is one that the template takes."""
    workload = instance_norm(1, 128, 128, 32)
    found = candidates(workload, H100)
    assert found[0].family == "cuda.moments"
    moments = [candidate for candidate in found if candidate.family == "cuda.moments"]
    assert all(isinstance(schedule(workload, candidate, H100), Kernel) for candidate in moments)
    grouped = group_norm(1, 128, 128, 32)
    assert isinstance(schedule(grouped, candidates(grouped, H100)[0], H100), Kernel)


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_machine_code(arch: str) -> None:
    device = CUDA(arch)
    workload = instance_norm(1, 128, 128, 32)
    candidate = next(c for c in candidates(workload, device) if c.family == "cuda.moments")
    kernel = schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), kernel.reason
    found = resources(compile_source(cuda_on_cpu.source(kernel.func, device), device.target()))
    assert len(found) == 3
    assert all(kernel.stack_bytes <= 0 for kernel in found)
