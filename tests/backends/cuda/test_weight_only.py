"""A few rows times constant weights of 4 or 8 bits on tensor cores: values, packing, machine code, candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from subtune.backends import candidates, device_of, schedule
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA, CUDAModel
from subtune.backends.cuda.families import weight_only as family
from subtune.backends.cuda.families.weight_only.form import Form, few_rows, form_of
from subtune.backends.cuda.families.weight_only.packing import FragmentOrder
from subtune.backends.cuda.families.weight_only.tiling import WeightOnlyTile
from subtune.backends.cuda.lowering.default_schedule import pipeline
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import PLAIN
from subtune.core.workload import Workload
from subtune.measure.guarded import numpy_dtype
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.patterns.stages import anchored
from subtune.pipeline import normalize, partition
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.proposals import allowing, proposed
from tests.backends.cuda.test_values import check
from tests.backends.cuda.weight_only_workloads import weight_only
from tests.packed_weights import Case

A100, H200 = CUDA("A100"), CUDA("H200")
EMULATED = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")


def tile(threads: int, split: int, rows: int, unroll: int, cluster: int = 1, staged: int = 1) -> Candidate:
    knobs = dict(zip(WeightOnlyTile.__slots__, (threads, split, rows, unroll, cluster, staged), strict=True))
    return Candidate.make("cuda.weight_only", **knobs)


CASES = {
    "one row": (weight_only(1, 96, 512), tile(64, 2, 1, 2), A100),
    "three rows, not staged": (weight_only(3, 96, 512), tile(64, 2, 1, 2, staged=0), A100),
    "sixteen rows": (weight_only(16, 96, 512, zeros=True), tile(64, 2, 1, 2), A100),
    "ragged columns": (weight_only(9, 50, 512, 32, zeros=True), tile(64, 2, 2, 2), A100),
    "ragged k": (weight_only(5, 50, 480, 32, zeros=True, scale="float32"), tile(64, 2, 1, 4, staged=0), A100),
    "a shorter last group": (weight_only(2, 16, 488, 32), tile(64, 2, 1, 2), A100),
    "a warp of fewer chunks": (weight_only(2, 32, 64 * 5, 64), tile(64, 2, 1, 2), A100),
    "groups of a chunk": (weight_only(8, 64, 1024, 64), tile(128, 2, 1, 4), A100),
    "groups of several steps": (weight_only(2, 64, 1280, 256, zero=7), tile(64, 1, 1, 2), A100),
    "a row's scale": (weight_only(4, 70, 520, 520, zeros=True), tile(64, 2, 1, 2), A100),
    "bytes": (weight_only(1, 64, 512, 32, 8, zero=128, epilogue="bias+relu+residual"), tile(64, 2, 1, 2), A100),
    "bytes, zero points": (weight_only(12, 64, 512, 128, 8, zeros=True), tile(64, 2, 1, 2, staged=0), A100),
    "bytes with a sign": (weight_only(4, 70, 520, 520, 8, scale="float32", packed="int8", zero=0), tile(64, 2, 1, 2),
                          A100),
    "bfloat16": (weight_only(4, 64, 512, dtype="bfloat16", zeros=True), tile(64, 2, 1, 2), A100),
    "rounded rows": (weight_only(3, 64, 512, rounds=True, epilogue="bias"), tile(64, 2, 1, 2), A100),
    "bfloat16, bytes": (weight_only(9, 64, 512, 32, 8, dtype="bfloat16", zeros=True), tile(64, 2, 1, 2), A100),
    "rounded rows, not staged": (weight_only(9, 64, 480, 32, dtype="bfloat16", rounds=True),
                                 tile(64, 2, 1, 2, staged=0), A100),
    "a cluster": (weight_only(4, 64, 1024), tile(64, 2, 1, 2, 4), H200),
    "a cluster, ragged": (weight_only(16, 40, 832, 64, out="float32", epilogue="bias"), tile(128, 2, 1, 2, 2), H200),
}  # fmt: skip
LARGE = ("sixteen rows", "ragged columns", "ragged k", "a cluster, ragged")
"""Run on adversarial numbers too. Of bfloat16, with numbers up to 1e38, sums cancel to less than float32 holds."""


def kernel_of(given: Workload, candidate: Candidate, device: CUDAModel) -> Kernel:
    kernel = schedule(given, candidate, device)
    assert isinstance(kernel, Kernel), kernel.reason
    return kernel


def form(given: Workload) -> Form | NotApplicable:
    found = anchored(given, few_rows)
    return found if isinstance(found, NotApplicable) else form_of(found[2], given)


@EMULATED
@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "random") for name in CASES), *((name, "adversarial") for name in LARGE)]
)
@pytest.mark.grid
def test_values(name: str, kind: str, tmp_path: Path) -> None:
    given, candidate, device = CASES[name]
    check(given, kernel_of(given, candidate, device), device, tmp_path, kind)


@EMULATED
@pytest.mark.parametrize(("bits", "dtype"), [(4, "float16"), (8, "float16"), (4, "bfloat16"), (8, "bfloat16")])
def test_every_weight_is_exact(bits: int, dtype: str, tmp_path: Path) -> None:
    """One element of each row of x is 1: what is stored is a weight itself, for every value and zero point."""
    given = weight_only(16, 256, 128, 32, bits, dtype, "float32", zeros=True, out="float32")
    kernel = kernel_of(given, tile(64, 1, 2, 2), A100)
    values = (np.arange(256)[:, None] + np.arange(128)) % 2**bits
    zeros = ((np.arange(256)[:, None] * 7 + np.arange(4) * 67) % 256).astype("uint8")
    packed = (values if bits == 8 else values[:, ::2] | values[:, 1::2] << 4).astype("uint8")
    at = np.array([0, 1, 2, 3, 4, 6, 7, 9, 31, 32, 45, 63, 64, 77, 100, 127])
    x = np.zeros((16, 128), numpy_dtype(dtype))
    x[np.arange(16), at] = 1
    scales = np.full((256, 4), 0.5, "float32")
    (found,) = cuda_on_cpu.run(kernel, [x, packed, scales, zeros], given, A100, tmp_path)
    wanted = (values[:, at] - zeros[:, at // 32].astype(int)) * 0.5
    np.testing.assert_array_equal(found, wanted.T.astype("float32"))


@pytest.mark.parametrize("bits", [4, 8])
def test_lanes_have_their_own_fragments(bits: int) -> None:
    """Rows g and g + 8, and of 32 k those from 8 t on, as the module says."""
    values = np.random.default_rng(bits).integers(0, 2**bits, (40, 100)).astype("uint8")
    packed = values if bits == 8 else values[:, ::2] | values[:, 1::2] << 4
    order = FragmentOrder(40, 100, bits, 4)
    found = order(packed)
    assert found.shape == order.shape == (4, 2, bits // 4, 32, 16)
    assert found.dtype == packed.dtype
    padded = np.zeros((64, 128), "uint8")
    padded[:40, :100] = values
    tile_, chunk, g, t, h, j = 1, 1, 5, 2, 0, 1
    upper, lower = (padded[tile_ * 16 + row, chunk * 64 + h * 32 + t * 8 + j * 4 :][:4] for row in (g, g + 8))
    if bits == 4:
        word = found[tile_, chunk, 0, 4 * g + t, (h * 2 + j) * 4 :][:4]
        np.testing.assert_array_equal(word & 15, upper[[0, 2, 1, 3]])
        np.testing.assert_array_equal(word >> 4, lower[[0, 2, 1, 3]])
    else:
        words = found[tile_, chunk, h, 4 * g + t, j * 8 :][:8]
        np.testing.assert_array_equal(words, np.concatenate([upper[:2], lower[:2], upper[2:], lower[2:]]))


def test_what_is_recognised() -> None:
    assert form(weight_only(1, 16, 64, 32)) == Form(16, 64, 1, 4, 32, 8, "float16", "float16", 0, 1, 2, -1)
    assert form(weight_only(9, 16, 64, 64, 8, scale="float32", zeros=True)) == Form(
        16, 64, 9, 8, 0, -1, "float16", "float32", 0, 1, 2, 3
    )
    assert form(weight_only(2, 16, 64, 64, 8, packed="int8", zero=0)) == Form(
        16, 64, 2, 8, 0, 128, "float16", "float16", 0, 1, 2, -1, "int8"
    )


REASONS = {
    "at most 16": weight_only(17, 16, 64),
    "groups of 16": weight_only(1, 16, 64, 16),
    "groups of 128 of 192": weight_only(1, 16, 192),
    "no multiple of 8": weight_only(1, 16, 36, 32),
    "rows of float32": weight_only(1, 16, 64, dtype="float32"),
    "no constants": weight_only(1, 16, 64, is_constant=False),
    "their zero at 300": weight_only(1, 16, 64, zero=300),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_does_not_apply_says_why(reason: str) -> None:
    given = REASONS[reason]
    found = schedule(given, tile(64, 1, 1, 1), H200)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason
    assert proposed(family.FAMILY, given, H200) == []


OBSTACLES = {
    "tensor cores": (CUDA("T4"), tile(64, 2, 1, 2)),
    "or they are off": (allowing(H200, tensor_core="off"), tile(64, 2, 1, 2)),
    "no clusters": (A100, tile(64, 2, 1, 2, 2)),
    "share k": (A100, tile(96, 2, 1, 2)),
    "on their way": (A100, tile(64, 2, 4, 8)),
    "nothing to do": (A100, tile(512, 16, 1, 2)),
    "shared memory": (A100, tile(64, 1, 1, 1)),
}


@pytest.mark.parametrize("reason", OBSTACLES)
def test_tiles_that_do_not_work_say_why(reason: str) -> None:
    device, candidate = OBSTACLES[reason]
    given = weight_only(16, 64, 11008) if reason == "shared memory" else weight_only(16, 64, 1024)
    found = schedule(given, candidate, device)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


@pytest.mark.parametrize("device", [A100, H200], ids=["A100", "H200"])
def test_weights_are_asked_for_before_the_kernel_in_front_has_ended(device: CUDAModel) -> None:
    body = cuda_on_cpu.source(kernel_of(weight_only(1, 64, 512), tile(64, 2, 1, 2), device).func, device)
    body = body[body.rindex("main_kernel(") :]
    before, wait, after = body.partition("griddepcontrol_wait()")
    assert bool(wait) == (device is H200)
    assert "::begin(" in before
    if wait:
        assert "::run(" in after
        assert "x_ptr" in after
        assert "rounded_ptr[" not in before


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("device", [A100, H200], ids=["A100", "H200"])
@pytest.mark.parametrize("given", [weight_only(1, 4096, 4096), weight_only(16, 4096, 4096, 32, 8, zeros=True)],
                         ids=["a row", "sixteen rows of bytes"])  # fmt: skip
def test_nothing_spills(given: Workload, device: CUDAModel, monkeypatch: pytest.MonkeyPatch) -> None:
    found = form(given)
    assert isinstance(found, Form)
    monkeypatch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # the source is all that is wanted
    for candidate in proposed(family.FAMILY, given, device)[:3]:
        func = kernel_of(given, candidate, device).func.with_attr("global_symbol", "main")
        lib = tvm.compile(func, device.target(), tir_pipeline=pipeline())
        (used,) = resources(compile_source(str(lib.mod.imports[0].inspect_source()), device.target()))
        assert used.stack_bytes == 0, candidate
        assert used.registers <= candidate.as_knobs(WeightOnlyTile).registers(found) + 24, candidate


@pytest.mark.parametrize(("dtype", "rows", "is_offered"), [("float16", 16, True), ("bfloat16", 1, True),
                                                           ("float16", 17, False), ("float32", 4, False)])  # fmt: skip
def test_models_keep_their_weights_where_there_is_a_kernel(dtype: str, rows: int, is_offered: bool) -> None:
    device = device_of("h200", is_measured=False)
    forms = device.backend.forms(device.model)
    mod = normalize(Case(rows, 128, 256, dtype=dtype, zero="blocks").module(), forms=forms)
    found = [
        {candidate.family for candidate in candidates(subgraph.workload, device, 40)}
        for subgraph in extract(outline(mod, partition(mod, forms)))
    ]
    assert any("cuda.weight_only" in families for families in found) == is_offered


OFFERED = {
    "a row": weight_only(1, 4096, 4096),
    "sixteen rows": weight_only(16, 4096, 4096),
    "more columns": weight_only(2, 11008, 4096, 32, zeros=True),
    "longer rows": weight_only(16, 4096, 11008),
    "bytes": weight_only(4, 4096, 4096, 4096, 8),
}


@pytest.mark.parametrize("name", OFFERED)
def test_candidates_fit(name: str) -> None:
    given = OFFERED[name]
    found = form(given)
    assert isinstance(found, Form)
    for device, clusters in ((A100, {1}), (H200, {1, 2, 4, 8})):
        tiles = proposed(family.FAMILY, given, device)
        assert {candidate.as_knobs(WeightOnlyTile).cluster for candidate in tiles} <= clusters
        assert len(tiles) >= 5
        for candidate in tiles:
            assert candidate.as_knobs(WeightOnlyTile).obstacle(found, device, PLAIN) == ""
            assert candidate.predicted_s > given.nbytes / device.dram_bytes_per_s
    assert any(candidate.family == "cuda.weight_only" for candidate in candidates(given, H200, 8))
