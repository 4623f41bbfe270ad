"""Strassen's algorithm on CUDA cores: what it computes, and for which products it is proposed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from subtune.backends import candidates, schedule
from subtune.backends.algorithms.strassen import block_products
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import strassen
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.fma_workloads import EPILOGUE, FP32
from tests.backends.cuda.gemm_workloads import convolution, product
from tests.backends.cuda.proposals import allowing, proposed
from tests.backends.cuda.test_values import check

H100 = CUDA("H100")


def tiled(levels: int, **knobs: int) -> Candidate:
    shape: dict[str, Any] = {"bm": 32, "bn": 64, "bk": 8, "tm": 4, "tn": 4}
    how: dict[str, Any] = {"stages": 2, "copy": "registers", "raster": 1}
    return Candidate.make("cuda.strassen", levels=levels, **shape | how | knobs)


CASES = {
    "nt": (product(64, 80, 48, "nt", **FP32), tiled(1)),
    "nn": (product(64, 64, 64, "nn", **EPILOGUE), tiled(1)),
    "tails": (product(72, 88, 56, "nn", **EPILOGUE), tiled(1)),
    "two levels": (product(136, 64, 64, "nn", bias=True, **FP32), tiled(2)),
    "two levels, constant": (product(64, 80, 48, "nt", constant=True, **EPILOGUE), tiled(2, bn=32)),
}


def scheduled(workload: Workload, candidate: Candidate) -> Kernel:
    kernel = schedule(workload, candidate, H100)
    assert isinstance(kernel, Kernel), kernel.reason
    return kernel


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, tmp_path: Path) -> None:
    workload, candidate = CASES[name]
    check(workload, scheduled(workload, candidate), H100, tmp_path)


def test_seven_products_of_an_eighth() -> None:
    assert block_products(1, 64, 32, 128, is_nn=False).flops == 2 * 64 * 32 * 128 * 7 // 8
    assert block_products(2, 64, 32, 128, is_nn=True).flops == 2 * 64 * 32 * 128 * 49 // 64


@pytest.mark.parametrize(
    "workload",
    [
        product(64, 64, 65, "nt", **FP32),
        product(63, 64, 64, "nt", **FP32),
        product(64, 64, 64, "nt", batch=2, **FP32),
        product(64, 64, 64, "nt"),
        convolution(1, 8, 16, 16, 3, **FP32),
    ],
)
def test_others_are_refused(workload: Workload) -> None:
    assert isinstance(schedule(workload, tiled(1), H100), NotApplicable)


def test_exact_arithmetic_forbids_it() -> None:
    workload = product(4096, 4096, 4096, "nt", **FP32)
    exact = allowing(H100, exact=True)
    assert isinstance(schedule(workload, tiled(1), exact), NotApplicable)
    assert proposed(strassen.FAMILY, workload, exact) == []


def test_candidates_of_large_products_alone() -> None:
    small, middle, large = (product(n, n, n, "nn", **FP32) for n in (1024, 2048, 4096))
    assert proposed(strassen.FAMILY, small, H100) == []
    assert {c["levels"] for c in proposed(strassen.FAMILY, middle, H100)} == {1}
    found = proposed(strassen.FAMILY, large, H100)
    assert {c["levels"] for c in found} == {1, 2}
    assert found == sorted(found, key=lambda candidate: candidate.predicted_s)
    scheduled(large, found[0])


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_machine_code(arch: str) -> None:
    device = CUDA(arch)
    workload = product(4096, 4096, 4096, "nn", **FP32)
    candidate = next(c for c in candidates(workload, device) if c.family == "cuda.strassen")
    kernel = schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), kernel.reason
    found = resources(compile_source(cuda_on_cpu.source(kernel.func, device), device.target()))
    assert len(found) == 4
    assert all(kernel.stack_bytes <= 8 for kernel in found)
