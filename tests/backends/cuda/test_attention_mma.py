"""Attention on mma.sync: what is proposed, that it builds, and what its kernels compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.driver import driver_device
from subtune.backends.cuda.families.attention_mma import FAMILY
from subtune.backends.cuda.families.attention_mma.schedule import schedule
from subtune.backends.cuda.families.attention_mma.tiling import Knobs
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import Numerics
from subtune.measure.hazards import hazards
from subtune.measure.inputs import make_inputs
from subtune.measure.verdict import disagreement
from subtune.patterns.chain import chain_expressions
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.attention_workloads import attention
from tests.backends.cuda.proposals import allowing, proposed

A100, H200, RTX = CUDA("A100"), CUDA("H200"), CUDA("RTX 3090")
HERE = driver_device()
LIMITS = {"float16": 1e-3, "bfloat16": 6e-3, "float32": 3e-6}
"""Relative errors, by the type of the operands."""


def kernel_of(workload: Any, knobs: Knobs, model: Any) -> Kernel:
    device = allowing(model)
    kernel = schedule(Problem(workload, device.model, device.numerics), knobs)
    assert isinstance(kernel, Kernel), kernel
    return kernel


def best(workload: Any, model: Any) -> Knobs:
    found = min(proposed(FAMILY, workload, model), key=lambda candidate: candidate.predicted_s)
    return found.as_knobs(Knobs)


def test_who_is_accepted() -> None:
    half, single = attention(2, 48, 48, 64), attention(2, 48, 48, 64, dtype="float32")
    assert proposed(FAMILY, half, A100)
    assert not proposed(FAMILY, half, CUDA("T4"))
    assert proposed(FAMILY, single, A100)
    assert proposed(FAMILY, single, H200)
    exact = Problem(single, A100, Numerics(exact=True))
    assert FAMILY.accepts(exact)
    many = attention(2, 512, 512, 64)  # rows enough for wgmma
    assert proposed(FAMILY, many, A100)
    assert not proposed(FAMILY, many, H200)


def test_few_rows_over_many_keys_keep_every_multiprocessor_busy() -> None:
    knobs = best(attention(8, 1, 8192, 128, batch=1), H200)
    assert 8 * knobs.splits >= 0.9 * H200.sms


SMALL: dict[str, tuple[dict[str, Any], Knobs]] = {
    "causal, two parts of a block": (
        {"heads": 1, "rows": 17, "keys": 17, "dim": 40, "mask": "causal", "batch": 2}, Knobs(2, 2, 16, 2, 1)
    ),
    "one row, shared keys, splits": (
        {"heads": 4, "rows": 1, "keys": 70, "dim": 24, "shared": 4, "batch": 1}, Knobs(1, 1, 16, 3, 3)
    ),
    "added mask, bfloat16": (
        {"heads": 4, "rows": 3, "keys": 35, "dim": 16, "shared": 2, "mask": "added", "batch": 1, "dtype": "bfloat16"},
        Knobs(1, 2, 16, 2, 2),
    ),
    "straight to registers, one row, ragged": (
        {"heads": 2, "rows": 1, "keys": 75, "dim": 40, "batch": 1}, Knobs(1, 2, 16, 1, 1)
    ),
    "straight to registers, shared keys, mask, splits": (
        {"heads": 12, "rows": 1, "keys": 150, "dim": 56, "shared": 12, "mask": "added", "batch": 1,
         "dtype": "bfloat16"}, Knobs(1, 2, 32, 1, 2)
    ),
    "straight to registers, causal, heads last": (
        {"heads": 2, "rows": 19, "keys": 19, "dim": 64, "mask": "causal", "batch": 1, "heads_last": True},
        Knobs(1, 2, 16, 1, 1)
    ),
    "float32, causal, heads last": (
        {"heads": 2, "rows": 19, "keys": 19, "dim": 20, "mask": "causal", "batch": 1, "dtype": "float32",
         "heads_last": True, "hidden": -3.4e38}, Knobs(2, 1, 16, 2, 1),
    ),
    "float32, ragged, splits": (
        {"heads": 2, "rows": 5, "keys": 70, "dim": 24, "shared": 2, "batch": 1, "dtype": "float32"},
        Knobs(1, 2, 16, 3, 2),
    ),
}  # fmt: skip


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", SMALL)
@pytest.mark.grid
def test_values(case: str, tmp_path: Path) -> None:
    shape, knobs = SMALL[case]
    workload = attention(**shape)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    (want,) = cuda_on_cpu.reference(workload, inputs)
    (got,) = cuda_on_cpu.run(kernel_of(workload, knobs, A100), inputs, workload, A100, tmp_path)
    error = np.linalg.norm(got.astype("float64").ravel() - want.ravel()) / np.linalg.norm(want)
    assert error < LIMITS[shape.get("dtype", "float16")]


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
def test_scores_of_1e10_are_no_infinities(tmp_path: Path) -> None:
    """What the rounded product of the largest score and a factor lacks is then itself hundreds."""
    shape, knobs = SMALL["float32, causal, heads last"]
    workload = attention(**shape)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    inputs[:2] = [x * np.float32(1e5) for x in inputs[:2]]
    (want,) = cuda_on_cpu.reference(workload, inputs)
    (got,) = cuda_on_cpu.run(kernel_of(workload, knobs, A100), inputs, workload, A100, tmp_path)
    np.testing.assert_allclose(got.ravel(), want.ravel(), rtol=1e-4)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", [case for case in SMALL if "float32" in case])
def test_what_a_search_judges_it_on_is_right(case: str, tmp_path: Path) -> None:
    shape, knobs = SMALL[case]
    workload = attention(**shape)
    dangers = hazards(workload)
    assert "adversarial" in dangers.sets
    for name in dangers.sets:
        inputs = make_inputs(workload, name, dangers)
        (want,) = cuda_on_cpu.reference(workload, inputs)
        (got,) = cuda_on_cpu.run(kernel_of(workload, knobs, A100), inputs, workload, A100, tmp_path)
        is_adversarial = name == "adversarial"
        narrow = want.astype(got.dtype).reshape(got.shape)
        assert not disagreement(got, narrow, is_adversarial, nan_spreads=name == "special" and dangers.nan_spreads)


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("model", [H200, RTX])
def test_it_builds_without_a_stack(model: Any) -> None:
    workload = attention(4, 1, 200, 64, batch=1)
    kernel, target = kernel_of(workload, Knobs(1, 2, 32, 3, 2), model), model.target()
    with target:
        text = tvm.compile(kernel.func, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    found = resources(compile_source(text, target))
    assert len(found) == 2  # attention, and the merge of its parts
    assert all(one.stack_bytes == 0 for one in found)


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
def test_blocks_of_a_cluster_need_no_second_kernel() -> None:
    workload, knobs, target = attention(4, 1, 200, 64, batch=1), Knobs(1, 2, 32, 3, 2, cluster=True), H200.target()
    assert any(candidate.as_knobs(Knobs).cluster for candidate in proposed(FAMILY, attention(64, 1, 8192, 128), H200))
    with target:
        text = tvm.compile(kernel_of(workload, knobs, H200).func, target=target, tir_pipeline=register())
        (found,) = resources(compile_source(text.mod.imports[0].inspect_source(), target))
    assert found.stack_bytes == 0
    device = allowing(A100)
    refused = schedule(Problem(workload, device.model, device.numerics), knobs)
    assert isinstance(refused, NotApplicable)
    assert "cluster" in refused.reason


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize(("dim", "keys", "warps"), [(128, 16, 8), (64, 32, 4)])
def test_keys_and_values_stay_in_registers(dim: int, keys: int, warps: int) -> None:
    workload, knobs, target = attention(16, 1, 2048, dim), Knobs(1, warps, keys, 1, 1), H200.target()
    with target:
        text = tvm.compile(kernel_of(workload, knobs, H200).func, target=target, tir_pipeline=register())
        (found,) = resources(compile_source(text.mod.imports[0].inspect_source(), target))
    assert found.stack_bytes == 0
    assert found.registers <= knobs.registers(dim, dim) + 8


def test_warps_that_share_keys_need_no_second_kernel() -> None:
    kernel = kernel_of(attention(4, 1, 200, 64, batch=1), Knobs(1, 4, 16, 2, 1), A100)
    assert "attention_states" not in kernel.func.script()


GPU_CASES: dict[str, dict[str, Any]] = {
    "one row": {"heads": 8, "rows": 1, "keys": 2049, "dim": 128},
    "three rows, one tile": {"heads": 2, "rows": 3, "keys": 15, "dim": 96},
    "seventeen rows, added mask": {"heads": 2, "rows": 17, "keys": 33, "dim": 40, "mask": "added"},
    "shared keys": {"heads": 16, "rows": 1, "keys": 1000, "dim": 256, "shared": 8},
    "causal": {"heads": 2, "rows": 60, "keys": 60, "dim": 80, "mask": "causal", "is_wide": True, "heads_last": True},
    "bfloat16": {"heads": 4, "rows": 2, "keys": 777, "dim": 64, "dtype": "bfloat16"},
    "float32": {"heads": 4, "rows": 300, "keys": 210, "dim": 96, "dtype": "float32"},
    "float32, causal": {"heads": 2, "rows": 190, "keys": 190, "dim": 64, "mask": "causal", "dtype": "float32"},
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability < 80, reason=f"no GPU with mma.sync: {HERE}")
@pytest.mark.parametrize("case", GPU_CASES)
def test_attention_on_a_gpu(case: str) -> None:
    """Every sixth candidate against float64."""
    shape = GPU_CASES[case]
    workload = attention(**shape)
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    (want,) = cuda_on_cpu.reference(workload, inputs)
    model = CUDA()
    candidates = proposed(FAMILY, workload, model)
    assert candidates
    for candidate in candidates[::6]:
        kernel = kernel_of(workload, candidate.as_knobs(Knobs), model)
        with model.target():
            built = tvm.compile(kernel.func, target=model.target(), tir_pipeline=register())
        arrays = [tvm.runtime.tensor(x, tvm.cuda(0)) for x in inputs]
        last = workload.args[-1]
        out = tvm.runtime.tensor(np.full(last.shape, np.nan).astype(last.dtype), tvm.cuda(0))
        built["main"](*arrays, out)
        error = np.linalg.norm(out.numpy().astype("float64").ravel() - want.ravel()) / np.linalg.norm(want)
        assert error < LIMITS[shape.get("dtype", "float16")], (candidate.as_knobs(Knobs), error)


def test_loops_of_an_importer_are_no_attention() -> None:
    @T.prim_func(s_tir=True)
    def loops(x: T.Buffer((16,), "float16"), y: T.Buffer((16,), "float16")) -> None:
        for i in range(16):
            y[i] = x[i]

    assert isinstance(chain_expressions(loops, 1, one_row=True), NotApplicable)
