"""Products of float8e4m3fn on tensor cores, as quantised models have them: scaled, rounded, stored as bytes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.mma.tiling import tensor_core_obstacle
from subtune.core.candidate import DEFAULT, Candidate
from subtune.core.kernel import Kernel
from subtune.core.numerics import FLOAT8
from subtune.core.workload import Workload
from subtune.measure.guarded import numpy_dtype
from subtune.patterns.gemm import Gemm, gemm
from subtune.pipeline import prepare
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.gemm_workloads import product
from tests.backends.cuda.wgmma_on_cpu import on_hopper
from tests.float8_models import convolution, dense

needs_emulation = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
needs_compiler = pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
E4M3 = ml_dtypes.float8_e4m3fn
MODELS = {
    "dense": lambda: dense(72, 256, 96),
    "few rows": lambda: dense(16, 160, 64),
    "dense, floats out": lambda: dense(40, 128, 48, floats=True),
    "convolution": lambda: convolution(32, 64, 9),
    "strided": lambda: convolution(64, 32, 9, stride=2),
}
FAMILIES = [("RTX 4090", "cuda.mma"), ("H100", "cuda.wgmma"), ("H100", "cuda.mma")]


@cache
def workload(name: str, device: str) -> Workload:
    forms = as_device(CUDA(device)).backend.forms(CUDA(device))
    found = [s.workload for s in prepare(MODELS[name](), forms=forms).subgraphs]
    (one,) = (w for w in found if isinstance(gemm(w), Gemm))
    return one


def chosen(name: str, device: str, family: str) -> tuple[Candidate, Kernel]:
    found = backends.candidates(workload(name, device), CUDA(device), 60)
    candidate = next(c for c in found if c.family == family)
    kernel = backends.schedule(workload(name, device), candidate, CUDA(device))
    assert isinstance(kernel, Kernel), kernel
    return candidate, kernel


def numbers(given: Workload) -> list[np.ndarray]:
    """Operands of any magnitude below 2; factors and biases that leave results among the numbers of 8 bits."""
    rng = np.random.default_rng(0)
    made = []
    for arg in given.args[: len(given.args) - given.num_outputs]:
        values = rng.standard_normal([int(d) for d in arg.shape])
        made.append(np.asarray(values if arg.dtype == FLOAT8 else 1 + 0.1 * values, numpy_dtype(arg.dtype)))
    return made


def expected(given: Workload, inputs: list[np.ndarray], stride: int) -> np.ndarray:
    """In float64, before it is rounded to 8 bits."""
    a, b = (array.astype(np.float64) for array in inputs[:2])
    if a.ndim == 2:
        total = a @ b
    else:
        seen = np.pad(a, [(0, 0), (1, 1), (1, 1), (0, 0)])
        windows = np.lib.stride_tricks.sliding_window_view(seen, (3, 3), axis=(1, 2))[:, ::stride, ::stride]
        total = np.einsum("nhwcyx,oyxc->nhwo", windows, b)
    return np.maximum(total * inputs[2] + inputs[3], 0)


@needs_emulation
@pytest.mark.parametrize(
    ("name", "device", "family"),
    [
        *((name, "H100", "cuda.wgmma") for name in MODELS),
        *((name, "RTX 4090", "cuda.mma") for name in ("dense", "strided")),
        ("convolution", "H100", "cuda.mma"),
    ],
)
@pytest.mark.grid
def test_products_are_rounded_once(name: str, device: str, family: str, tmp_path: Path) -> None:
    given = workload(name, device)
    inputs = numbers(given)
    if family == "cuda.wgmma":
        found = on_hopper(given, inputs, tmp_path)
    else:
        (found,) = cuda_on_cpu.run(chosen(name, device, family)[1], inputs, given, CUDA(device), tmp_path)
    want = expected(given, inputs, 2 if name == "strided" else 1)
    assert given.args[-1].dtype == ("float32" if "floats" in name else FLOAT8)
    step = float(np.asarray(inputs[4])) if "floats" in name else 1.0
    right = np.clip(want, -448, 448).astype(np.float32).astype(E4M3).astype(np.float32) * np.float32(step)
    got = found.astype(np.float32)
    assert np.ptp(right) > 10
    apart = got != right
    assert apart.mean() < 2e-3, "but for sums in another order, next to a tie"
    np.testing.assert_allclose(got, right, rtol=0.13)


@needs_compiler
@pytest.mark.parametrize(("device", "family"), FAMILIES)
@pytest.mark.parametrize("name", ["dense", "convolution"])
def test_they_compile(name: str, device: str, family: str) -> None:
    candidate, kernel = chosen(name, device, family)
    code = cuda_on_cpu.source(kernel.func, CUDA(device))
    instruction = r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32" if family == "cuda.mma" else r"wgmma\S*k32\.f32"
    assert re.search(instruction + r"\.e4m3\.e4m3", code)
    for used in resources(compile_source(code, CUDA(device).target())):
        assert used.stack_bytes == 0, candidate
    default = backends.schedule(workload(name, device), DEFAULT, CUDA(device))
    assert isinstance(default, Kernel)
    assert resources(compile_source(cuda_on_cpu.source(default.func, CUDA(device)), CUDA(device).target()))


@pytest.mark.parametrize(("device", "family"), FAMILIES[:2])
def test_results_are_stored_16_bytes_at_a_time(device: str, family: str) -> None:
    given = workload("convolution", device)
    found = [c for c in backends.candidates(given, CUDA(device), 60) if c.family == family]
    # of fewer columns a warp's threads store 8 bytes each
    of_warp = {c: int(c["columns"]) if family == "cuda.wgmma" else int(c["bn"]) // int(c["wn"]) for c in found}
    wide = next(c for c in found if of_warp[c] == 32)
    kernel = backends.schedule(given, wide, CUDA(device))
    assert isinstance(kernel, Kernel)
    code = cuda_on_cpu.source(kernel.func, CUDA(device))
    assert re.search(r"\*\((uint4|fp8_e4x16_t)\*\)\(\w*quantize\w*_ptr \+ [^;]*\) = ", code)


def test_sums_are_promoted() -> None:
    """Tensor cores keep 14 bits of a sum."""
    candidate, _ = chosen("dense", "H100", "cuda.wgmma")
    assert candidate["promote"]
    code = cuda_on_cpu.source(chosen("dense", "RTX 4090", "cuda.mma")[1].func, CUDA("RTX 4090"))
    assert "subtune::add_mma_float8(" in code


def test_vectors_are_cast_by_elements(tmp_path: Path) -> None:
    """Every number of 8 bits, and what lies between and beyond."""
    device = CUDA("H100")
    bits = np.arange(256, dtype=np.uint8).view(E4M3).astype(np.float32)
    finite = np.sort(bits[np.isfinite(bits)])
    ties = (finite[1:] + finite[:-1]) / 2
    given = np.concatenate([bits, ties, np.nextafter(ties, np.float32(1e9)), [np.inf, -np.inf, 463, 465, 1e9, -1e9]])
    given = np.resize(given, (8, 128)).astype(np.float32)

    def body(_emit: Any, x: Any) -> Any:
        zero = relax.const(0, "int8")
        return op.quantize(x, relax.const(1.0, "float32"), zero, axis=0, out_dtype=FLOAT8)

    quantised = workloads.build(body, [given.shape])
    kernel = backends.schedule(quantised, backends.candidates(quantised, device, 1)[0], device)
    assert isinstance(kernel, Kernel)
    if not cuda_on_cpu.toolkit():
        pytest.skip("no headers of CUDA or no C++ compiler")
    (found,) = cuda_on_cpu.run(kernel, [given], quantised, device, tmp_path)
    right = np.clip(given, -448, 448).astype(E4M3)
    np.testing.assert_array_equal(found.astype(np.float32), right.astype(np.float32))


@pytest.mark.parametrize("device", ["A100", "RTX 3090"])
def test_older_tensor_cores_have_none(device: str) -> None:
    form = gemm(product(64, 64, 64, dtype=FLOAT8, out="float32"))
    assert isinstance(form, Gemm)
    of = as_device(CUDA(device))
    assert f"multiplies no {FLOAT8}, sm_89 and later do" in tensor_core_obstacle(form, of.model, of.numerics)
    assert not of.backend.forms(of.model).multiplies_float8
    args = [
        arg for s in prepare(dense(72, 256, 96), forms=of.backend.forms(of.model)).subgraphs for arg in s.workload.args
    ]
    assert {arg.dtype for arg in args} == {"float32"}
