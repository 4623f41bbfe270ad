"""Products and convolutions of bytes on tensor cores before Hopper's: exact, requantised, stored 16 bytes at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from subtune import backends
from subtune.backends import as_device
from subtune.backends.base import Problem
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.mma.tiling import tensor_core_obstacle, tile_obstacle
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.gemm import Gemm, gemm
from subtune.pipeline import prepare
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.gemm_workloads import product
from tests.backends.cuda.proposals import tile_of
from tests.backends.cuda.wgmma_on_cpu import on_hopper
from tests.plain_tvm import compiled
from tests.qdq_graph import QdqGraph

needs_emulation = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
needs_compiler = pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
DEVICES = ("T4", "A100", "RTX 3090", "RTX 4090")


def convolution(cin: int = 32, cout: int = 64, kernel: int = 3, zero: int = 0, **attrs: Any) -> Any:
    g = QdqGraph((1, cin, 9, 10), zero=zero)
    weight, scales = g.weight((cout, cin, kernel, kernel))
    y = g.op("Conv", g.operand(), weight, g.bias(cout, scales), pads=[kernel // 2] * 4, **attrs)
    return g.model(g.quantised(y, 0.11, 3))


def residual() -> Any:
    """What is added has a scale and a zero point of its own, and is quantised and dequantised once more."""
    g = QdqGraph((1, 32, 6, 7), (1, 32, 6, 7), zero=0)
    weight, scales = g.weight((32, 32, 3, 3))
    y = g.op("Conv", g.operand(), weight, g.bias(32, scales), pads=[1] * 4)
    y = g.floats(g.quantised(y, 0.11, 120), 0.11, 120)
    return g.model(g.quantised(g.op("Relu", g.op("Add", y, g.operand(1))), 0.13, 0))


def dense(m: int = 50, n: int = 48, k: int = 80) -> Any:
    g = QdqGraph((m, k), zero=99)
    weight, scales = g.weight((k, n), axis=1)
    y = g.op("Add", g.op("MatMul", g.operand(), weight), g.bias(n, scales))
    return g.model(g.quantised(y, 0.2, 100))


def activations() -> Any:
    g = QdqGraph((2, 40, 64), (2, 48, 64), dtype="int8", zero=0)
    turned = g.op("Transpose", g.operand(1), perm=[0, 2, 1])
    return g.model(g.quantised(g.op("MatMul", g.operand(), turned), 0.2, 0, "int8"))


MODELS: dict[str, Callable[[], Any]] = {
    "padded with zeros": convolution,
    "padded with a zero point": lambda: convolution(zero=7),
    "strided": lambda: convolution(kernel=1, strides=[2, 2]),
    "sixteen channels": lambda: convolution(cin=16, cout=16, kernel=5),
    "residual": residual,
    "dense": dense,
    "signed by signed": activations,
}


@cache
def workload(name: str, device: str) -> Workload:
    forms = as_device(CUDA(device)).backend.forms(CUDA(device))
    found = [s.workload for s in prepare(MODELS[name](), forms=forms).subgraphs]
    (one,) = (w for w in found if isinstance(gemm(w), Gemm))
    return one


def proposed(name: str, device: str) -> list[Candidate]:
    found = backends.candidates(workload(name, device), CUDA(device), 60)
    return [candidate for candidate in found if candidate.family == "cuda.mma"]


def kernel_of(name: str, device: str, candidate: Candidate) -> Kernel:
    kernel = backends.schedule(workload(name, device), candidate, CUDA(device))
    assert isinstance(kernel, Kernel), kernel
    return kernel


def numbers(given: Workload) -> list[np.ndarray]:
    """Any byte; scales that leave sums within a byte's range for the most part."""
    rng = np.random.default_rng(0)
    made = []
    for arg in given.args:
        shape = tuple(int(d) for d in arg.shape)
        if arg.dtype == "float32":
            made.append(np.asarray(0.002 * (1 + rng.random(shape)), "float32"))
        else:
            low, high = (-500, 500) if arg.dtype == "int32" else (np.iinfo(arg.dtype).min, np.iinfo(arg.dtype).max)
            made.append(np.asarray(rng.integers(low, high + 1, shape), arg.dtype))
    return [array for array, arg in zip(made, given.args, strict=True) if not arg.is_output]


def unscheduled(given: Workload, inputs: list[np.ndarray]) -> np.ndarray:
    (out,) = (arg for arg in given.args if arg.is_output)
    tensors = [tvm.runtime.tensor(array) for array in (*inputs, np.zeros([int(d) for d in out.shape], out.dtype))]
    compiled(given.func.with_attr("global_symbol", "main"))["main"](*tensors)
    return tensors[-1].numpy()


@needs_emulation
@pytest.mark.parametrize(
    ("name", "device"), [*((name, "A100") for name in MODELS), ("residual", "T4"), ("sixteen channels", "T4")]
)
@pytest.mark.grid
def test_bytes_are_exact(name: str, device: str, tmp_path: Path) -> None:
    given = workload(name, device)
    inputs = numbers(given)
    want = unscheduled(given, inputs)
    assert np.ptp(want.astype(int)) > 100
    for number, candidate in enumerate(chosen(name, device)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (found,) = cuda_on_cpu.run(kernel_of(name, device, candidate), inputs, given, CUDA(device), folder)
        np.testing.assert_array_equal(found, want, err_msg=str(candidate))


@needs_emulation
@pytest.mark.parametrize("name", MODELS)
def test_bytes_of_wgmma_are_exact(name: str, tmp_path: Path) -> None:
    given = workload(name, "H100")
    inputs = numbers(given)
    found = on_hopper(given, inputs, tmp_path)
    np.testing.assert_array_equal(found, unscheduled(given, inputs))


def chosen(name: str, device: str) -> list[Candidate]:
    """The first one, and the first whose sums are of parts of k."""
    found = proposed(name, device)
    return [*found[:1], *[c for c in found if int(c.get("split") or 1) > 1][:1]]


def source(name: str, device: str, candidate: Candidate) -> str:
    text = cuda_on_cpu.source(kernel_of(name, device, candidate).func, CUDA(device))
    return text[text.rindex('extern "C" __global__') :]


@needs_compiler
@pytest.mark.parametrize(
    ("name", "device"), [*(("residual", device) for device in DEVICES), ("sixteen channels", "RTX 4090")]
)
def test_they_compile(name: str, device: str) -> None:
    shape = "m8n8k16" if device == "T4" else "m16n8k32"
    for candidate in chosen(name, device):
        code = cuda_on_cpu.source(kernel_of(name, device, candidate).func, CUDA(device))
        assert set(re.findall(r'"mma\.sync\.aligned\.(\w+)\.', code)) == {shape}
        for used in resources(compile_source(code, CUDA(device).target())):
            assert used.stack_bytes <= 16, candidate
            assert used.registers <= 255


@pytest.mark.parametrize("name", ["padded with zeros", "residual", "sixteen channels"])
def test_images_are_copied_asynchronously_16_bytes_at_a_time(name: str) -> None:
    """Though zeros are filled in around them, and a tile of k has several taps of few channels."""
    deep = next(c for c in proposed(name, "A100") if int(c["bk"]) >= 64 and int(c["stages"]) > 1)
    code = source(name, "A100", deep)
    assert code.count("ptx_cp_async_legacy_pred_cg_16_1_1(") >= int(deep["stages"]), "one a stage, and in the loop"
    assert "condval" not in code, "no copy through registers"


def test_results_are_stored_16_bytes_at_a_time() -> None:
    wide = next(c for c in proposed("residual", "A100") if int(c["bn"]) // int(c["wn"]) == 32)
    code = source("residual", "A100", wide)
    assert re.search(r"\*\(uint4\*\)\(quantize\w*_ptr \+ [^;]*\) = \*\(uint4\*\)", code)
    narrow = next(c for c in proposed("residual", "A100") if int(c["bm"]) * int(c["bn"]) == 256)
    code = source("residual", "A100", narrow)
    assert re.search(r"\*\(uint2\*\)\(quantize\w*_ptr \+ [^;]*\) = \*\(uint2\*\)", code), "every lane has 8 of them"


def test_copies_of_turing_are_made_by_threads() -> None:
    found = proposed("padded with zeros", "T4")
    assert found
    assert {int(c["stages"]) for c in found} <= {1, 2}
    assert "cp_async" not in source("padded with zeros", "T4", found[0])
    deep = Candidate.make("cuda.mma", **{**dict(found[0].knobs), "bk": 64, "stages": 3})
    refused = backends.schedule(workload("padded with zeros", "T4"), deep, CUDA("T4"))
    assert isinstance(refused, NotApplicable)
    assert "3 stages without asynchronous copies" in refused.reason


@pytest.mark.parametrize("device", DEVICES)
def test_candidates_fit_and_beat_cuda_cores(device: str) -> None:
    for name in MODELS:
        form = gemm(workload(name, device))
        assert isinstance(form, Gemm)
        found = proposed(name, device)
        assert found
        assert not any(tile_obstacle(tile_of(c), form, CUDA(device)) for c in found)
        everything = backends.candidates(workload(name, device), CUDA(device), 60)
        assert min(everything, key=lambda c: c.predicted_s).family == "cuda.mma"


REASONS = [
    (product(64, 64, 64, dtype="float16"), "T4", "sm_75 has no mma.sync of 32-byte depth"),
    (product(64, 64, 64, dtype="int8", acc="int32", out="int32"), "V100", "sm_70 has no mma.sync"),
    (product(64, 64, 64, dtype="int8", acc="float32", out="float32"), "A100", "sums of float32 from operands of int8"),
]


@pytest.mark.parametrize(("given", "device", "reason"), REASONS)
def test_why_not(given: Workload, device: str, reason: str) -> None:
    form = gemm(given)
    assert isinstance(form, Gemm)
    problem = Problem(given, CUDA(device), as_device(CUDA(device)).numerics)
    assert reason in tensor_core_obstacle(form, problem.device, problem.numerics)


@pytest.mark.parametrize(("m", "n", "k"), [(100352, 72, 24), (401408, 16, 40)])
def test_what_has_no_tiles_of_wgmma_is_not_left_to_cuda_cores(m: int, n: int, k: int) -> None:
    """Rows of 24 and of 40 bytes, which no tensor map copies."""
    (given,) = (s.workload for s in prepare(dense(m, n, k)).subgraphs if isinstance(gemm(s.workload), Gemm))
    found = backends.candidates(given, CUDA("H100"), 60)
    assert "cuda.wgmma" not in {c.family for c in found}
    assert min(found, key=lambda c: c.predicted_s).family == "cuda.mma"
    beside = backends.candidates(workload("dense", "H100"), CUDA("H100"), 60)
    assert sum(c.family == "cuda.mma" for c in beside) <= 4
