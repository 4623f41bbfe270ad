"""Pooling of bytes, compared two at a time: exact, in accesses of whole words, for what has instructions for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax, te, tirx
from tvm.relax import op

from subtune import backends
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import window
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.tir.expressions import minimum_over
from tests.backends import workloads
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.proposals import proposed

H200 = CUDA("H200")
SHAPE = (2, 11, 10, 32)


def pool(dtype: str, kernel: int = 3, stride: int = 2, pad: int = 1, channels: int = 32) -> Workload:
    def body(_emit: Any, x: Any) -> Any:
        return op.nn.max_pool2d(x, (kernel, kernel), strides=stride, padding=pad, layout="NHWC")

    return workloads.build(body, [(*SHAPE[:3], channels)], dtype=dtype)


def smallest(dtype: str, outside: int) -> Workload:
    """Of 3x3 pixels at every second; `outside` stands for those beyond the image."""
    n, height, width, channels = SHAPE
    x = te.placeholder(SHAPE, dtype, "x")

    def inside(i: Any, h: Any, w: Any, c: Any) -> Any:
        is_there = tirx.all(h >= 1, h < height + 1, w >= 1, w < width + 1)
        return tirx.if_then_else(is_there, x[i, h - 1, w - 1, c], tirx.const(outside, dtype))

    padded = te.compute((n, height + 2, width + 2, channels), inside, "padded")
    taps = [te.reduce_axis((0, 3), f"k{i}") for i in range(2)]
    shape = n, (height - 1) // 2 + 1, (width - 1) // 2 + 1, channels
    y = te.compute(shape, lambda i, h, w, c: minimum_over(padded[i, 2 * h + taps[0], 2 * w + taps[1], c], taps), "y")
    return Workload.of(te.create_prim_func([x, y]), 1)


def dequantized() -> Workload:
    """What follows is computed of the maxima, byte by byte."""

    def body(emit: Any, x: Any) -> Any:
        most = emit(op.nn.max_pool2d(x, (3, 3), strides=2, padding=1, layout="NHWC"))
        return op.dequantize(most, relax.const(np.float32(0.25)), relax.const(7, "uint8"), axis=0, out_dtype="float32")

    return workloads.build(body, [SHAPE], dtype="uint8")


def extremes(x: np.ndarray, kernel: int, stride: int, pad: int, outside: int, choose: Any = np.max) -> np.ndarray:
    padded = np.pad(x, [(0, 0), (pad, pad), (pad, pad), (0, 0)], constant_values=outside)
    seen = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(1, 2))
    return choose(seen[:, ::stride, ::stride], axis=(-1, -2))


CASES = {
    "one pixel": (pool("uint8"), (16, 1, 1), (3, 2, 1, 0)),
    "rows that overlap": (pool("uint8"), (16, 4, 1), (3, 2, 1, 0)),
    "pixels that share": (pool("uint8"), (8, 2, 3), (3, 2, 1, 0)),
    "signed": (pool("int8"), (16, 2, 2), (3, 2, 1, -128)),
    "an even number of taps": (pool("uint8", 2, 2, 0), (4, 1, 2), (2, 2, 0, 0)),
    "one tap": (pool("int8", 1, 2, 0), (16, 1, 1), (1, 2, 0, 0)),
    "5x5": (pool("uint8", 5, 1, 2), (16, 1, 2), (5, 1, 2, 0)),
    "smallest": (smallest("uint8", 255), (16, 2, 1), (3, 2, 1, 255, np.min)),
    "smallest, a known padding": (smallest("int8", -3), (16, 1, 2), (3, 2, 1, -3, np.min)),
}


def candidate(lanes: int, rows: int, cols: int) -> Candidate:
    return Candidate.make("cuda.window", threads=64, lanes=lanes, rows=rows, cols=cols, pairs=True)


def scheduled(workload: Workload, tile: tuple[int, int, int]) -> Kernel:
    kernel = backends.schedule(workload, candidate(*tile), H200)
    assert isinstance(kernel, Kernel), kernel
    return kernel


def numbers(workload: Workload) -> np.ndarray:
    """Any byte in any place of a word."""
    arg = workload.args[0]
    limits = np.iinfo(arg.dtype)
    return np.random.default_rng(0).integers(limits.min, limits.max + 1, arg.shape).astype(arg.dtype)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_extremes_are_exact(name: str, tmp_path: Path) -> None:
    workload, tile, how = CASES[name]
    x = numbers(workload)
    (found,) = cuda_on_cpu.run(scheduled(workload, tile), [x], workload, H200, tmp_path)
    np.testing.assert_array_equal(found, extremes(x, *how))


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
def test_what_follows_is_computed_of_them(tmp_path: Path) -> None:
    workload = dequantized()
    x = numbers(workload)
    inputs = [x, *(np.asarray(value) for value in (np.float32(0.25), np.uint8(7)))][: len(workload.args) - 1]
    (found,) = cuda_on_cpu.run(scheduled(workload, (16, 2, 1)), inputs, workload, H200, tmp_path)
    np.testing.assert_array_equal(found, (extremes(x, 3, 2, 1, 0).astype(np.float32) - 7) * np.float32(0.25))


def test_bytes_are_read_once_and_stored_in_accesses_of_16() -> None:
    source = cuda_on_cpu.source(scheduled(pool("uint8"), (16, 2, 1)).func, H200)
    assert len(re.findall(r"= \*\(uint4\*\)\(p0_ptr", source)) == 15, "5 rows of 3 pixels for two results"
    assert len(re.findall(r"\*\(uint4\*\)\(pool_max\w*_ptr [^;]*\) = ", source)) == 2
    assert len(re.findall("__vimax3_u16x2", source)) == 2 * 4 * 2 * 4, "of two results, words, pairs, and two taps"


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_they_compile(arch: str) -> None:
    device = CUDA(arch)
    kernel = backends.schedule(pool("uint8", channels=64), candidate(16, 2, 2), device)
    assert isinstance(kernel, Kernel)
    (used,) = resources(compile_source(cuda_on_cpu.source(kernel.func, device), device.target()))
    assert used.stack_bytes == 0


def test_they_are_expected_to_be_faster_where_they_are_proposed() -> None:
    workload = pool("uint8", channels=64)
    found = sorted(proposed(window.FAMILY, workload, H200), key=lambda c: c.predicted_s)
    assert found[0].get("pairs")
    assert not all(c.get("pairs") for c in found)
    assert all(c.predicted_s > workload.nbytes / H200.dram_bytes_per_s for c in found)
    for others in (proposed(window.FAMILY, workload, CUDA("A100")), proposed(window.FAMILY, pool("float16"), H200)):
        assert others
        assert not any(c.get("pairs") for c in others)


@pytest.mark.parametrize(
    ("workload", "lanes", "reason"),
    [
        (pool("float16"), 8, "no largest or smallest of bytes"),
        (pool("int32"), 4, "no largest or smallest of bytes"),
        (pool("uint8", channels=6), 2, "no words"),
    ],
)
def test_others_are_refused(workload: Workload, lanes: int, reason: str) -> None:
    found = backends.schedule(workload, candidate(lanes, 1, 1), H200)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason
