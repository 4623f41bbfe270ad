"""Products and convolutions of float32 on CUDA cores, and Winograd's algorithm there, without a GPU."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm

from subtune.backends import candidates, schedule
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import fma, winograd
from subtune.backends.cuda.families.fma.candidates import b_along_k
from subtune.backends.cuda.lowering.pipeline import lower_s_tir, register
from subtune.backends.cuda.model.core_tiles import FmaTile
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.gemm import Gemm, gemm
from tests.backends.cuda.fma_workloads import CASES, FP32, tiled
from tests.backends.cuda.gemm_workloads import convolution, product
from tests.backends.cuda.proposals import allowing, proposed, tile_of

DEVICES = {name: CUDA(name) for name in ("A100", "RTX 4090", "H100")}


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # the source is all that is looked at


def scheduled(name: str, device: str = "H100") -> Kernel:
    workload, candidate = CASES[name]
    kernel = schedule(workload, candidate, DEVICES[device])
    assert isinstance(kernel, Kernel), kernel.reason
    return kernel


def source_of(name: str, device: str = "H100") -> str:
    return printed(scheduled(name, device), device)


def printed(kernel: Kernel, device: str) -> str:
    mod = tvm.IRModule({"main": kernel.func})
    lib = tvm.compile(mod, target=DEVICES[device].target(), tir_pipeline=register())
    return str(lib.mod.imports[0].inspect_source())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.grid
def test_lowers_to_cuda(name: str, device: str) -> None:
    source = source_of(name, device)
    workload, candidate = CASES[name]
    is_winograd = candidate.family == "cuda.winograd"
    assert source.count(">::run(") == 1, "one main loop"
    assert ("::input<" in source) == ("::output<" in source) == is_winograd
    assert len(source.splitlines()) < 1200, "its loops stay loops"
    has_vectors = all(int(arg.shape[-1]) % 4 == 0 for arg in (workload.args[0], workload.args[-1]))
    has_vectors = has_vectors and tile_of(candidate).vector == 4
    if "unpadded" not in name and has_vectors:
        assert "= *(float4*)(" in source, "16-byte stores"


@pytest.mark.parametrize("name", CASES)
@pytest.mark.grid
def test_memory_of_its_own_is_whole(name: str) -> None:
    """TVM shrinks an allocation to what it sees used, and it does not see what a function in C++ uses."""
    workload, candidate = CASES[name]
    tile = tile_of(candidate)
    with DEVICES["H100"].target():
        text = lower_s_tir(tvm.IRModule({"main": scheduled(name).func.with_attr("target", DEVICES["H100"].target())}))
    lowered = text.script()
    launched = re.findall(r"T\.int64\((\d+)\), launch_params=\[[^]]*use_dyn_shared_memory", lowered)
    assert launched == [str(tile.shared_bytes("given nt" in name))]
    if candidate.family == "cuda.winograd":
        m = int(candidate["m"])
        batch, size, _, columns = (int(d) for d in workload.args[-1].shape)
        count = (m + 2) ** 2 * batch * (-(-size // m)) ** 2
        sizes = [int(size) for size in re.findall(r"(?:v|products) = T\.alloc_buffer\(\((\d+),\)\)", lowered)]
        assert sizes == [count * int(workload.args[0].shape[-1]), count * columns]


@pytest.mark.parametrize("name", ["3x3", "few channels", "HWIO", "dense nn", "dense nt", "batch"])
def test_weights_are_packed_by_k(name: str) -> None:
    ((param, packing),) = scheduled(name).packings
    workload, _ = CASES[name]
    array = np.arange(np.prod(workload.args[param].shape)).reshape(workload.args[param].shape)
    if name in ("HWIO", "dense nn", "batch"):
        wanted = array
    else:
        wanted = np.moveaxis(array, 0, -1)
    assert np.array_equal(packing(array).reshape(-1), wanted.reshape(-1))


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("device", ["A100", "H100"])
@pytest.mark.parametrize("name", ["3x3", "few channels", "F(4)", "given nt", "given nt, 2 slices"])
@pytest.mark.grid
def test_nothing_spills(name: str, device: str) -> None:
    for kernel in resources(compile_source(source_of(name, device), DEVICES[device].target())):
        assert kernel.stack_bytes == 0, kernel


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize(("device", "stack_bytes"), [("A100", 16), ("H100", 0)])
def test_slices_of_large_tiles_fit_their_registers(device: str, stack_bytes: int) -> None:
    """Or nearly: four addresses that a step begins with are reloaded on sm_80."""
    candidate = tiled("fma", 64, 128, 32, 8, 8, blocks=1, slices=4)
    kernel = schedule(product(1024, 1024, 1024, "nn", **FP32), candidate, DEVICES[device])
    assert isinstance(kernel, Kernel)
    (found,) = resources(compile_source(printed(kernel, device), DEVICES[device].target()))
    assert found.registers <= tile_of(candidate).registers <= 128
    assert found.stack_bytes <= stack_bytes


def test_slices_share_rows_and_depth() -> None:
    assert FmaTile(64, 64, 16, 8, 8, 4, 1, slices=4).obstacle(4, DEVICES["H100"]) == ""
    for bk, tm in ((8, 8), (16, 2)):
        refused = FmaTile(64, 64, bk, tm, 8, 4, 1, slices=4).obstacle(4, DEVICES["H100"])
        assert "4 slices do not share" in refused


REASONS = [
    (convolution(1, 14, 16, 32, 3), "fma", CUDA("H100"), "no product of float32"),
    (product(64, 64, 64, "tn", constant=True, **FP32), "fma", CUDA("H100"), "not contiguous along k"),
    (product(64, 10, 64, "nn", constant=False, **FP32), "fma", CUDA("H100"), "10 columns"),
    (product(64, 1, 64, "nn", constant=True, **FP32), "fma", CUDA("H100"), "a single column"),
    (convolution(1, 14, 16, 32, 3, **FP32), "fma", CUDA("V100"), "no asynchronous copies"),
    (convolution(1, 14, 16, 32, 3, 2, **FP32), "winograd", CUDA("H100"), "stride"),
    (convolution(1, 14, 16, 32, 5, **FP32), "winograd", CUDA("H100"), "not 3x3"),
    (convolution(1, 14, 16, 32, 3, **FP32), "winograd", allowing(CUDA("H100"), exact=True), "rounds otherwise"),
]


@pytest.mark.parametrize(("workload", "template", "device", "reason"), REASONS, ids=[reason for *_, reason in REASONS])
def test_why_not(workload: Workload, template: str, device: Any, reason: str) -> None:
    refused = schedule(
        workload, tiled(template, 32, 32, 8, 4, 4, **({"m": 4} if template == "winograd" else {})), device
    )
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason
    family = {"fma": fma, "winograd": winograd}[template].FAMILY
    if "along k" not in reason:
        assert proposed(family, workload, device) == []


POLICY_CASES = {
    "large": convolution(128, 28, 128, 128, 3, bias=True, **FP32),
    "one image": convolution(1, 7, 512, 512, 3, **FP32),
    "few channels": convolution(128, 224, 3, 64, 7, 2, **FP32),
    "dense": product(128, 1000, 512, "nn", constant=True, bias=True, **FP32),
    "given nn": product(1000, 1000, 500, "nn", batch=2, **FP32),
    "given nt": product(1024, 1024, 1024, "nt", bias=True, **FP32),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POLICY_CASES)
def test_every_candidate_fits(name: str, device: str) -> None:
    workload, model = POLICY_CASES[name], DEVICES[device]
    form = gemm(workload)
    assert isinstance(form, Gemm)
    found = proposed(fma.FAMILY, workload, model) + proposed(winograd.FAMILY, workload, model)
    assert found
    for candidate in found:
        tile = tile_of(candidate)
        assert tile.obstacle(min(4, form.a.vector), model, b_along_k(form), form.k) == ""
        assert tile.blocks * (tile.shared_bytes(b_along_k(form)) + 1024) <= model.shared_per_sm_bytes
        assert tile.blocks * tile.threads * tile.registers <= model.registers_per_sm
        flops = form.flops / (4 if candidate.family == "cuda.winograd" else 1)
        rate = model.mma_flops("tfloat32") / 3 if tile.tensor else model.fma_flops()
        assert candidate.predicted_s > flops / rate


def test_few_tiles_are_sliced() -> None:
    few, many = (product(size, size, size, "nt", **FP32) for size in (1024, 8192))
    on_cores = allowing(DEVICES["H100"], tensor_core="off")
    assert all((c.family == "cuda.fma") and int(c["slices"]) > 1 for c in candidates(few, on_cores)[:3])
    of_many = [c for c in candidates(many, on_cores) if c.family == "cuda.fma"]
    assert of_many[0]["slices"] == 1
    assert all(c["split"] == 1 for c in of_many)
    for workload, others in ((few, ()), (many, ("cuda.strassen",))):
        templates = {c.family for c in candidates(workload, on_cores)}
        assert templates == {"cuda.fma", "cuda.simt", *others}


def test_tensor_cores_multiply_float32_in_three_products() -> None:
    workload, h100 = product(1024, 1024, 1024, "nt", **FP32), DEVICES["H100"]
    first = candidates(workload, h100)[0]
    assert first.family == "cuda.mma" or first["tensor"]
    for numerics in ({"exact": True}, {"tensor_core": "off"}):
        found = candidates(workload, allowing(h100, **numerics))
        assert {c.family for c in found} == {"cuda.fma", "cuda.simt"}
        assert not any(c.get("tensor") for c in found)
    workload, candidate = CASES["tensor, 3x3"]
    kernel = schedule(workload, candidate, allowing(h100, exact=True))
    assert isinstance(kernel, NotApplicable)
    assert "round otherwise" in kernel.reason


def test_long_sums_of_few_tiles_are_split() -> None:
    workload = product(128, 128, 150528, "nt", constant=True, bias=True, relu=True, **FP32)
    first = candidates(workload, DEVICES["H100"])[0]
    assert first.family == "cuda.fma"
    blocks = 128 // int(first["bm"]) * (128 // int(first["bn"])) * int(first["split"])
    assert blocks > DEVICES["H100"].sms // 2
    odd = product(128, 128, 150529, "nt", constant=True, **FP32)
    assert int(proposed(fma.FAMILY, odd, DEVICES["H100"])[0]["split"]) > 1


def test_winograd_is_first_where_it_saves_most() -> None:
    first = candidates(POLICY_CASES["large"], DEVICES["H100"])[0]
    assert (first.family, first["m"]) == ("cuda.winograd", 4)
    exact = candidates(POLICY_CASES["large"], allowing(DEVICES["H100"], exact=True))
    assert exact[0].family in ("cuda.fma", "cuda.simt")
    assert all(candidate.family != "cuda.winograd" for candidate in exact)
