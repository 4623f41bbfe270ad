"""Vectors times a matrix of 4-bit weights on tensor cores: what is recognised, values, machine code, candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.backends import candidates, schedule
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA, CUDAModel
from subtune.backends.cuda.families import gemv_packed
from subtune.backends.cuda.lowering.default_schedule import pipeline
from subtune.bench.gpu_op import GpuOp
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import PLAIN
from subtune.core.workload import Workload
from subtune.patterns.gemv_packed import PackedGemv, packed_gemv
from subtune.patterns.stages import anchored
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.proposals import allowing, proposed, tile_of
from tests.backends.cuda.test_values import check

A100, H200 = CUDA("A100"), CUDA("H200")


def workload(
    n: int, k: int, m: int = 1, packed: str = "int8", zero: float = 0.0, group: int = 0, bits: int = 4,
    out: str = "float16", is_biased: bool = False,
) -> Workload:  # fmt: skip
    """A[m, k] times (nibbles - zero) * scale; with a bias, the larger of zero and the sum as well."""
    per = int(packed.removeprefix("u").removeprefix("int")) // bits
    a, w = te.placeholder((m, k), "float16", "a"), te.placeholder((n, k // per), packed, "w")
    scales = [te.placeholder((n, k // group), "float16", "scale")] if group else []

    def weight(j: Any, i: Any) -> Any:
        nibble = (w[j, i // per] >> ((i % per) * bits).astype(packed)) & tirx.const(2**bits - 1, packed)
        value = nibble.astype("float16")
        value = value - tirx.const(zero, "float16") if zero else value
        return value * scales[0][j, i // group] if group else value

    unpacked, r = te.compute((n, k), weight, "unpacked"), te.reduce_axis((0, k), "r")
    sums = te.compute((m, n), lambda i, j: te.sum(
        a[i, r].astype("float32") * unpacked[j, r].astype("float32"), axis=r), "sums")  # fmt: skip
    args = [a, w, *scales]
    biased = sums
    if is_biased:
        args.append(te.placeholder((n,), "float16", "bias"))
        value = lambda i, j: tirx.max(sums[i, j] + args[-1][j].astype("float32"), tirx.const(0.0, "float32"))  # noqa: E731
        biased = te.compute((m, n), value, "biased")
    result = biased if out == "float32" else te.compute((m, n), lambda i, j: biased[i, j].astype(out), "z")
    return Workload.of(te.create_prim_func([*args, result]).with_attr("layout_free_buffers", []), 1)


def tile(threads: int, split: int, rows: int, unroll: int) -> Candidate:
    return Candidate.make("cuda.gemv_packed", threads=threads, split=split, tile=rows, unroll=unroll)


CASES = {
    "even": (workload(96, 512), tile(64, 2, 1, 1)),
    "ragged rows": (workload(41, 512), tile(64, 1, 2, 2)),
    "ragged k": (workload(32, 32 * 13), tile(64, 2, 1, 2)),
    "ragged both": (workload(100, 32 * 9, out="float32"), tile(128, 4, 2, 1)),
    "fewer k than warps": (workload(16, 32), tile(64, 2, 1, 1)),
    "five vectors": (workload(48, 288, m=5, packed="uint8"), tile(64, 2, 1, 1)),
    "eight vectors": (workload(40, 256, m=8, out="float32"), tile(64, 1, 1, 2)),
    "bias and relu": (workload(40, 256, is_biased=True), tile(64, 2, 1, 1)),
    "groups, words of 32 bits": (workload(40, 352, packed="uint32", zero=7, group=32), tile(64, 2, 1, 2)),
    "larger groups": (workload(32, 384, zero=8, group=128), tile(64, 1, 1, 1)),
    "a scale for a row": (workload(24, 160, m=2, packed="int32", group=160), tile(64, 2, 1, 1)),
}


def kernel_of(name: str, device: CUDAModel = A100) -> Kernel:
    given, candidate = CASES[name]
    kernel = schedule(given, candidate, device)
    assert isinstance(kernel, Kernel), kernel.reason
    return kernel


def form_of(given: Workload) -> PackedGemv | NotApplicable:
    found = anchored(given, packed_gemv)
    return found if isinstance(found, NotApplicable) else found[2]


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("kind", ["random", "adversarial"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.grid
def test_values(name: str, kind: str, tmp_path: Path) -> None:
    check(CASES[name][0], kernel_of(name), A100, tmp_path, kind)


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0xF0, 0x0F, 0x10, 0x80])
def test_every_weight_is_exact(byte: int, tmp_path: Path) -> None:
    """One element of the vector is 1: a row's sum is that weight itself."""
    given = workload(16, 256, m=8, out="float32")
    kernel = schedule(given, tile(64, 2, 1, 1), A100)
    assert isinstance(kernel, Kernel)
    packed = np.random.default_rng(byte).integers(0, 256, (16, 128)).astype("uint8")
    packed[:, ::3] = byte
    weights = np.stack([packed & 15, packed >> 4], -1).reshape(16, 256)
    vectors, at = np.zeros((8, 256), "float16"), np.array([0, 1, 6, 7, 37, 100, 254, 255])
    vectors[np.arange(8), at] = 1
    (found,) = cuda_on_cpu.run(kernel, [vectors, packed.view("int8")], given, A100, tmp_path)
    np.testing.assert_array_equal(found, weights[:, at].T.astype("float32"))


def test_what_is_recognised() -> None:
    assert form_of(workload(16, 64)) == PackedGemv(16, 64, 1, 0, 1)
    assert form_of(workload(16, 64, 3, "uint32", 7, 32)) == PackedGemv(16, 64, 3, 0, 1, 7, 2, 32)
    assert form_of(workload(16, 64, group=64)) == PackedGemv(16, 64, 1, 0, 1, 0, 2, 64)
    assert form_of(GpuOp("gemv_i4", (64, 128)).workload()) == PackedGemv(64, 128, 1, 0, 1)


REASONS = {
    "nibbles": workload(16, 64, bits=2),
    "whole runs": workload(16, 48),
    "at most 8": workload(16, 64, m=9),
    "zero at 0.5": workload(16, 64, zero=0.5),
    "by group": workload(16, 64, group=16),
    "not made in float16": GpuOp("gemv_i4", (64, 128), "float32").workload(),
    "sum products": GpuOp("sum", (64, 128)).workload(),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_does_not_apply_says_why(reason: str) -> None:
    given = REASONS[reason]
    found = schedule(given, tile(64, 2, 1, 1), H200)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason
    assert proposed(gemv_packed.FAMILY, given, H200) == []


@pytest.mark.parametrize("device", [CUDA("T4"), allowing(H200, tensor_core="off")], ids=["T4", "off"])
def test_tensor_cores_are_needed(device: CUDAModel) -> None:
    given, candidate = CASES["even"]
    found = schedule(given, candidate, device)
    assert isinstance(found, NotApplicable)
    assert "tensor cores" in found.reason
    assert all(c.family != "cuda.gemv_packed" for c in candidates(given, device))


def cubin(kernel: Kernel, device: CUDAModel, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # the source is all that is wanted
    lib = tvm.compile(kernel.func.with_attr("global_symbol", "main"), device.target(), tir_pipeline=pipeline())
    return compile_source(str(lib.mod.imports[0].inspect_source()), device.target())


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("device", [A100, H200], ids=["A100", "H200"])
@pytest.mark.parametrize("given", [workload(4096, 4096), workload(4096, 4096, 4, "uint32", 7, 32)], ids=["", "groups"])
def test_nothing_spills(given: Workload, device: CUDAModel, monkeypatch: pytest.MonkeyPatch) -> None:
    form = form_of(given)
    assert isinstance(form, PackedGemv)
    for candidate in proposed(gemv_packed.FAMILY, given, device)[:3]:
        kernel = schedule(given, candidate, device)
        assert isinstance(kernel, Kernel)
        (used,) = resources(cubin(kernel, device, monkeypatch))
        assert used.stack_bytes == 0, candidate
        assert used.registers <= tile_of(candidate).registers(form) + 16, candidate


OFFERED = {
    "4096": GpuOp("gemv_i4", (4096, 4096)).workload(),
    "16384": GpuOp("gemv_i4", (16384, 16384)).workload(),
    "groups": workload(11008, 4096, 1, "uint32", 7, 32),
    "five vectors": workload(4096, 4096, 5),
}


@pytest.mark.parametrize("name", OFFERED)
def test_candidates_come_first_and_fit(name: str) -> None:
    given = OFFERED[name]
    found = candidates(given, H200)
    assert found[0].family == "cuda.gemv_packed"
    assert {"cuda.gemv_packed", "cuda.rowwise"} <= {candidate.family for candidate in found}
    form = form_of(given)
    assert isinstance(form, PackedGemv)
    for candidate in found:
        if candidate.family == "cuda.gemv_packed":
            assert tile_of(candidate).obstacle(form, H200, PLAIN) == ""
            assert candidate.predicted_s > given.nbytes / H200.dram_bytes_per_s
