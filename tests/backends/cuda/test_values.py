"""What CUDA kernels compute, without a GPU: their source runs on the processor and is compared with float64."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tvm import te, tirx

from subtune import backends
from subtune.backends.cuda.device import CUDA, CUDAModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.measure.hazards import hazards
from subtune.measure.inputs import make_inputs
from subtune.measure.verdict import TOLERANCE, TOLERANCE_OTHER, disagreement
from tests.backends.cuda import cuda_on_cpu, fma_workloads, test_gemm, test_memory

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


PRODUCTS = ("tails", "bfloat16", "int8 packed", "packed square", "convolution", "three channels", "float32 async",
            "masked", "masked float32")  # fmt: skip
FLOAT32 = ("3x3", "few channels", "dense nn", "sixteen rows", "sliced", "F(4)", "F(2), tails", "F(2), sliced",
           *(name for name in fma_workloads.CASES if name.startswith(("given", "odd", "tensor"))))  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.grid
def test_products(name: str, tmp_path: Path) -> None:
    workload, _ = test_gemm.CASES[name]
    check(workload, test_gemm.scheduled(name, A100), A100, tmp_path)


@pytest.mark.parametrize("name", FLOAT32)
@pytest.mark.grid
def test_float32(name: str, tmp_path: Path) -> None:
    workload, candidate = fma_workloads.CASES[name]
    kernel = backends.schedule(workload, candidate, A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


def test_an_output_that_reads_another(tmp_path: Path) -> None:
    workload = test_memory.chained()
    found = backends.candidates(workload, A100, 20)
    assert {candidate.family for candidate in found} == {"cuda.elementwise"}
    kernel = backends.schedule(workload, found[0], A100)
    assert isinstance(kernel, Kernel)
    check(workload, kernel, A100, tmp_path)


def test_booleans_are_moved_16_at_a_time(tmp_path: Path) -> None:
    types = {"flag": "bool", "x": "float32", "y": "float16"}
    flag, x, y = (te.placeholder((256,), dtype, name) for name, dtype in types.items())
    chosen = te.compute((256,), lambda i: tirx.Select(flag[i], x[i], y[i].astype("float32")), "chosen")
    negated = te.compute((256,), lambda i: tirx.Not(flag[i]), "negated")
    workload = Workload.of(te.create_prim_func([flag, x, y, chosen, negated]), 2)
    kernel = backends.schedule(workload, Candidate.make("cuda.elementwise", threads=128, lanes=16, unroll=1), A100)
    assert isinstance(kernel, Kernel)
    assert "move_bytes<16>" in cuda_on_cpu.source(kernel.func, A100)
    check(workload, kernel, A100, tmp_path)
