"""The policy is generated from the hardware model: what it proposes for narrower or foreign processors is right there.

AVX2 kernels run here where the processor has AVX2. AArch64 kernels are built everywhere; their results are checked in
an emulator (Debian: the packages qemu-user and gcc-aarch64-linux-gnu), and everywhere with the very same PrimFuncs
built for this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends.workloads import (
    batch_matmul,
    conv,
    dense,
    elementwise,
    global_pool,
    layer_norm,
    max_pool,
    softmax,
    transpose,
)

Run = Callable[[Workload, Kernel | None], np.ndarray]

CASES = {
    "conv": lambda: conv(9, 8, 24, 3),
    "conv, odd channels": lambda: conv(7, 5, 13, 3),
    "depthwise, odd": lambda: conv(11, 13, 13, 3, groups=13),
    "dense, primes": lambda: dense(31, 53, 67),
    "dense, long reduction": lambda: dense(8, 32, 512),
    "attention scores": lambda: batch_matmul(2, 17, 19, 20, transposed=True),
    "max pool": lambda: max_pool(13, 20),
    "global pool": lambda: global_pool(7, 12),
    "softmax, odd": lambda: softmax(5, 19),
    "layer norm": lambda: layer_norm(4, 96),
    "elementwise, odd": lambda: elementwise(7, 13),
    "transpose": lambda: transpose(1, 3, 12, 14),
}


def first_of_each_template(workload: Workload, device: CPUModel) -> list[tuple[Candidate, Kernel]]:
    """The best candidate of every template that the policy proposes, scheduled."""
    best: dict[str, Candidate] = {}
    for candidate in backends.candidates(workload, device, topk=40):
        best.setdefault(candidate.family, candidate)
    kernels = []
    for candidate in best.values():
        kernel = backends.schedule(workload, candidate, device)
        assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
        kernels.append((candidate, kernel))
    assert kernels
    return kernels


def assembly(kernel: Kernel, device: CPUModel, folder: Path) -> str:
    path = folder / "kernel.s"
    tvm.compile(kernel.func.with_attr("global_symbol", "main"), target=device.target()).mod.write_to_file(str(path))
    return path.read_text()


def check(candidate: Candidate, got: np.ndarray, expected: np.ndarray) -> None:
    tolerance = 2e-5 if candidate.family in ("winograd", "strassen") else 2e-6
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max(), str(candidate)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "name", ["haswell", "cortex-a72", *(pytest.param(name, marks=pytest.mark.slow) for name in ("nehalem", "apple-m1"))]
)
@pytest.mark.grid
def test_kernels_for_narrower_vectors_are_right(name: str, case: str, run: Run) -> None:
    """The schedules of the other processor, built for this one: LLVM takes vectors of any width."""
    device, workload = CPU(name, threads=2), CASES[case]()
    expected = run(workload, None)
    for candidate, kernel in first_of_each_template(workload, device):
        check(candidate, run(workload, kernel), expected)


def test_all_templates_are_among_the_cases() -> None:
    device = CPU("haswell", threads=2)
    seen = {c.family for make in CASES.values() for c, _ in first_of_each_template(make(), device)}
    assert seen >= {"contraction", "split_k", "winograd", "window", "rowwise", "elementwise"}


@pytest.mark.parametrize("case", ["conv", "dense, primes", "dense, long reduction", "depthwise, odd", "softmax, odd"])
def test_avx2_kernels_use_its_registers_and_no_others(case: str, tmp_path: Path) -> None:
    device = CPU("haswell", threads=2)
    for candidate, kernel in first_of_each_template(CASES[case](), device):
        text = assembly(kernel, device, tmp_path)
        assert "%zmm" not in text, str(candidate)
        if candidate.family in ("contraction", "winograd", "split_k"):
            assert re.search(r"vfmadd\w+ps\s.*%ymm", text), str(candidate)


@pytest.mark.parametrize("name", ["cortex-a72", "neoverse-v1", "apple-m1"])
def test_arm_kernels_multiply_and_add_four_floats_at_once(name: str, tmp_path: Path) -> None:
    device = CPU(name, threads=2)
    workload = CASES["dense, primes"]()
    (_, kernel), *_ = first_of_each_template(workload, device)
    text = assembly(kernel, device, tmp_path)
    assert re.search(r"\bfmla(\.4s)?\s+v\d+", text)
    assert "libm" not in text


@pytest.fixture(scope="session")
def emulated(
    on_aarch64: Callable[..., np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Workload, Kernel, CPUModel], np.ndarray]:
    """Run a kernel as the `run` fixture does, built for AArch64, in an emulator."""
    path = tmp_path_factory.mktemp("built") / "kernel.o"

    def run(workload: Workload, kernel: Kernel, device: CPUModel) -> np.ndarray:
        rng = np.random.default_rng(1)
        arrays = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args]
        for index, packing in kernel.packings:
            arrays[index] = packing(arrays[index])
        arrays[-1] = np.full_like(arrays[-1], np.nan)
        func = kernel.func.with_attr("global_symbol", "main")
        tvm.compile(func, target=device.target()).mod.write_to_file(str(path))
        return on_aarch64(path.read_bytes(), arrays)

    return run


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["cortex-a72", pytest.param("neoverse-v1", marks=pytest.mark.slow)])
def test_aarch64_kernels_are_right_in_an_emulator(
    name: str, case: str, run: Run, emulated: Callable[..., np.ndarray]
) -> None:
    device, workload = CPU(name, threads=2), CASES[case]()
    expected = run(workload, None)
    for candidate, kernel in first_of_each_template(workload, device):
        check(candidate, emulated(workload, kernel, device), expected)
