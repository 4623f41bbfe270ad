"""Planes of an image put side by side on a GPU: exact, in vectors, whatever the rows' alignment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import elementwise, interleaved
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.proposals import proposed

H200 = CUDA("H200")
SCALE, ZERO, OUTSIDE = np.float32(0.05), 121, 7


def quantised(shape: tuple[int, int, int, int], pad: int, dtype: str = "uint8") -> Workload:
    """What a quantised network does to its input: float32 planes to bytes, as `dtype`, padded with `OUTSIDE`."""

    def body(emit: Any, x: Any) -> Any:
        scale, zero = relax.const(SCALE), relax.const(ZERO, "uint8")
        q = emit(op.quantize(x, scale, zero, axis=0, out_dtype="uint8"))
        q = q if dtype == "uint8" else emit(op.astype(q, dtype))
        if pad:
            q = emit(op.nn.pad(q, [0, 0, 0, 0, pad, pad, pad, pad], "constant", float(OUTSIDE)))
        return op.permute_dims(q, [0, 2, 3, 1])

    return workloads.build(body, [shape])


def scaled(shape: tuple[int, int, int, int]) -> Workload:
    """Another factor for every channel."""

    def body(emit: Any, x: Any, factor: Any) -> Any:
        return op.permute_dims(emit(op.multiply(x, factor)), [0, 2, 3, 1])

    return workloads.build(body, [shape], [(1, shape[1], 1, 1)], dtype="float16")


CASES = {  # shape, padding, type of the result; rows and threads of a block, pixels of a thread
    "three halves, padded": ((2, 3, 10, 16), 3, "float16", (4, 32, 4)),
    "three bytes, padded": ((2, 3, 9, 24), 1, "uint8", (8, 64, 8)),
    "rows in several turns": ((1, 3, 7, 32), 2, "uint8", (7, 32, 4)),
    "rows beyond the last block's": ((1, 3, 9, 20), 0, "float16", (4, 32, 4)),
    "pixels left over": ((2, 4, 5, 31), 3, "float32", (3, 64, 8)),
    "two channels": ((1, 2, 6, 36), 0, "uint8", (2, 32, 4)),
}


def scheduled(workload: Workload, rows: int, threads: int, pixels: int) -> Kernel:
    candidate = Candidate.make("cuda.interleaved", rows=rows, threads=threads, pixels=pixels)
    kernel = backends.schedule(workload, candidate, H200)
    assert isinstance(kernel, Kernel), kernel
    return kernel


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_pixels_are_exact(name: str, tmp_path: Path) -> None:
    shape, pad, dtype, knobs = CASES[name]
    workload = quantised(shape, pad, dtype)
    x = (4 * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)
    inputs = [x, np.asarray(SCALE), np.asarray(np.uint8(ZERO))]
    (found,) = cuda_on_cpu.run(scheduled(workload, *knobs), inputs, workload, H200, tmp_path)
    q = np.clip(np.rint(x / SCALE) + ZERO, 0, 255)
    padded = np.pad(q, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=OUTSIDE)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, padded.transpose(0, 2, 3, 1).astype(dtype))


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
def test_every_channel_has_its_own_operands(tmp_path: Path) -> None:
    workload = scaled((2, 3, 5, 24))
    rng = np.random.default_rng(0)
    x, factor = (rng.integers(-8, 9, arg.shape).astype("float16") for arg in workload.args[:-1])
    (found,) = cuda_on_cpu.run(scheduled(workload, 5, 32, 8), [x, factor], workload, H200, tmp_path)
    np.testing.assert_array_equal(found, (x * factor).transpose(0, 2, 3, 1))


def test_planes_are_read_and_pixels_stored_in_accesses_of_16_bytes() -> None:
    """A row is 34 pixels of 3 halves, so that four begin at a multiple of 16 bytes."""
    source = cuda_on_cpu.source(scheduled(quantised((2, 3, 30, 28), 3, "float16"), 4, 32, 4).func, H200)
    assert len(re.findall(r"= \*\(float4\*\)\(p0_ptr", source)) == 3
    assert not re.findall(r"= p0_ptr\[", source)
    assert re.findall(r"\*\(uint4\*\)\(T_\w*_ptr [^;]*\) = \*\(uint4\*\)\(tile", source)


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_they_compile(arch: str) -> None:
    device, workload = CUDA(arch), quantised((128, 3, 224, 224), 3, "float16")
    best = min(proposed(interleaved.FAMILY, workload, device), key=lambda c: c.predicted_s)
    kernel = backends.schedule(workload, best, device)
    assert isinstance(kernel, Kernel)
    (used,) = resources(compile_source(cuda_on_cpu.source(kernel.func, device), device.target()))
    assert used.stack_bytes == 0


def test_they_are_expected_to_be_faster_than_element_by_element() -> None:
    workload = quantised((128, 3, 224, 224), 3, "float16")
    found = proposed(interleaved.FAMILY, workload, H200)
    assert all(c.predicted_s > workload.nbytes / H200.dram_bytes_per_s for c in found)
    assert all(c["rows"] % 4 == 0 for c in found), "as many as begin at a multiple of 16 bytes"
    others = proposed(elementwise.FAMILY, workload, H200)
    assert min(c.predicted_s for c in found) < min(c.predicted_s for c in others)
    assert min(c.predicted_s for c in found) < 1.5 * workload.nbytes / H200.dram_bytes_per_s


def test_others_are_refused() -> None:
    many = workloads.build(lambda _, x: op.permute_dims(x, [0, 2, 3, 1]), [(1, 8, 12, 16)])
    pixels = workloads.build(lambda _, x: op.nn.relu(x), [(1, 12, 16, 3)])
    for workload, reason in ((many, "few channels"), (pixels, "does not lie along")):
        assert not proposed(interleaved.FAMILY, workload, H200)
        found = backends.schedule(workload, Candidate.make("cuda.interleaved", rows=4, threads=32, pixels=4), H200)
        assert isinstance(found, NotApplicable)
        assert reason in found.reason
    too_wide = Candidate.make("cuda.interleaved", rows=4, threads=32, pixels=64)
    assert isinstance(backends.schedule(quantised((1, 3, 8, 32), 0), too_wide, H200), NotApplicable)
