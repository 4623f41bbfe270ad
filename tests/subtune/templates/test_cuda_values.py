"""What CUDA kernels compute, without a GPU: their source runs on the processor and is compared with float64."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from subtune import models, policy, templates
from subtune.candidate import DEFAULT, Candidate
from subtune.compile import prepare
from subtune.devices.cuda import CUDA, CUDAModel
from subtune.kernel import Kernel
from subtune.measure.inputs import hazards, make_inputs
from subtune.measure.verdict import TOLERANCE, TOLERANCE_OTHER, disagreement
from subtune.workload import Workload
from tests.subtune.templates import cuda_on_cpu, fma_workloads, test_cuda_gemm

pytestmark = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")

A100 = CUDA("A100")


def check(workload: Workload, kernel: Kernel, device: CUDAModel, folder: Path, kind: str = "random") -> None:
    inputs = make_inputs(workload, kind, hazards(workload))
    found = cuda_on_cpu.run(kernel, inputs, workload, device, folder)
    outputs = [arg for arg in workload.args if arg.is_output]
    rounded = set(re.findall(r'"(b?float16)"', workload.func.script()))
    for arg, out, right in zip(outputs, found, cuda_on_cpu.reference(workload, inputs), strict=True):
        tolerance = max(TOLERANCE.get(dtype, TOLERANCE_OTHER) for dtype in (arg.dtype, *rounded))
        assert disagreement(out, right.astype(out.dtype), False, tolerance) == ""


PRODUCTS = ("tails", "bfloat16", "int8 packed", "convolution", "three channels", "float32 async", "masked",
            "masked float32")  # fmt: skip
FLOAT32 = ("3x3", "few channels", "dense nn", "F(4)", "F(2), tails")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, tmp_path: Path) -> None:
    workload, _ = test_cuda_gemm.CASES[name]
    check(workload, test_cuda_gemm.scheduled(name, A100), A100, tmp_path)


@pytest.mark.parametrize("name", FLOAT32)
def test_float32(name: str, tmp_path: Path) -> None:
    workload, candidate = fma_workloads.CASES[name]
    kernel = templates.schedule(workload, candidate, A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


def emulated(workload: Workload, device: CUDAModel, each: int = 1) -> list[Candidate]:
    """The first `each` candidates of every template, and the default schedule."""
    found: dict[str, list[Candidate]] = {}
    for candidate in policy.candidates(workload, device, 20):
        found.setdefault(candidate.template, []).append(candidate)
    return [candidate for of_one in found.values() for candidate in of_one[:each]] + [DEFAULT]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["gpt2", "lstm", "efficientnet_lite0", "unet"])
def test_models(name: str, precision: str, tmp_path: Path) -> None:
    done = set()
    for subgraph in prepare(models.reduced(name), precision=precision).subgraphs:
        workload = subgraph.workload
        if workload.key in done:
            continue
        done.add(workload.key)
        for candidate in emulated(workload, A100):
            kernel: Any = templates.schedule(workload, candidate, A100)
            if isinstance(kernel, Kernel):
                check(workload, kernel, A100, tmp_path)
