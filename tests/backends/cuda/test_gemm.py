"""Products on GPUs, without one: every layout, dtype and tail lowers to CUDA for three architectures."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from subtune.backends import as_device, schedule
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA, CUDAModel
from subtune.backends.cuda.families.mma import FAMILY as MMA
from subtune.backends.cuda.families.mma.tiling import tensor_core_obstacle, tile_obstacle
from subtune.backends.cuda.families.simt import FAMILY as SIMT
from subtune.backends.cuda.lowering.pipeline import lower_s_tir, register
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.gemm import Gemm, gemm
from subtune.tir.blocks import all_blocks
from tests.backends.cuda.gemm_workloads import convolution, product
from tests.backends.cuda.proposals import allowing, proposed, tile_of

INT8 = {"dtype": "int8", "acc": "int32", "out": "int32"}
FP32 = {"dtype": "float32", "acc": "float32"}
DEVICES = {name: allowing(CUDA(name), tf32=True) for name in ("A100", "RTX 4090", "H100")}


def mma(
    bm: int, bn: int, bk: int, wm: int, wn: int, stages: int, raster: int = 1, split: int = 1, **more: Any
) -> Candidate:  # fmt: skip
    tile: dict[str, Any] = {"bm": bm, "bn": bn, "bk": bk, "wm": wm, "wn": wn, "stages": stages}
    return Candidate.make("cuda.mma", **tile, raster=raster, split=split, **more)


def simt(bm: int, bn: int, bk: int, tm: int, tn: int, stages: int, copy: str) -> Candidate:
    return Candidate.make("cuda.simt", bm=bm, bn=bn, bk=bk, tm=tm, tn=tn, stages=stages, copy=copy, raster=1)


CASES: dict[str, tuple[Workload, Candidate]] = {
    "nt": (product(256, 256, 256, "nt", bias=True, relu=True), mma(128, 128, 32, 2, 2, 2, 8)),
    "nn": (product(256, 256, 256, "nn", residual=True), mma(64, 128, 32, 2, 2, 3)),
    "tn": (product(256, 256, 256, "tn"), mma(64, 64, 32, 2, 2, 3)),
    "tails": (product(1000, 200, 520, "nt", bias=True, residual=True), mma(128, 64, 64, 2, 2, 3)),
    "odd": (product(197, 197, 197, "nn", bias=True), mma(64, 64, 32, 2, 2, 3, split=2)),
    "sums in half": (product(128, 128, 128, "nt", acc="float16"), mma(64, 64, 64, 2, 2, 2)),
    "bfloat16": (product(128, 128, 128, "nn", dtype="bfloat16", bias=True), mma(64, 64, 64, 2, 2, 2)),
    "int8": (product(128, 128, 256, "nt", **INT8), mma(64, 64, 64, 2, 2, 3)),
    "int8 packed": (product(128, 128, 256, "nn", constant=True, **INT8), mma(64, 64, 64, 2, 2, 3, pack=True)),
    "tf32": (product(128, 128, 128, "nt", **FP32), mma(64, 64, 32, 2, 2, 3)),
    "packed": (product(128, 10, 510, "nn", bias=True, constant=True), mma(64, 16, 64, 2, 1, 3, pack=True)),
    "packed square": (product(40, 63, 63, "nn", bias=True, constant=True), mma(32, 32, 32, 2, 1, 2, pack=True)),
    "batch": (product(197, 64, 197, "nn", batch=12), mma(64, 32, 32, 2, 1, 3)),
    "prologue": (product(128, 128, 128, "nn", scale=True), mma(64, 64, 64, 2, 2, 2)),
    "convolution": (convolution(2, 28, 64, 64, 3, bias=True, residual=True, relu=True), mma(128, 64, 64, 2, 2, 3)),
    "strided HWIO": (convolution(2, 28, 64, 128, 3, 2, weights="HWIO"), mma(64, 64, 64, 2, 2, 2, split=4)),
    "three channels": (convolution(1, 56, 3, 64, 7, 2, bias=True), mma(128, 64, 32, 2, 2, 2)),
    "float32": (product(256, 256, 256, "nt", bias=True, **FP32), simt(128, 128, 8, 8, 8, 2, "registers")),
    "float32 async": (product(200, 100, 72, "nn", **FP32), simt(64, 64, 16, 8, 4, 2, "async")),
    "float32 convolution": (convolution(1, 28, 16, 64, 3, **FP32), simt(64, 64, 8, 8, 4, 2, "registers")),
    "half on CUDA cores": (product(64, 64, 64, "tn"), simt(64, 64, 8, 8, 4, 2, "registers")),
    "masked": (product(64, 64, 64, "nt", mask=True), mma(64, 64, 32, 2, 2, 2)),
    "masked float32": (product(64, 64, 64, "nt", mask=True, **FP32), simt(64, 64, 8, 8, 4, 2, "registers")),
}


def scheduled(name: str, device: CUDAModel) -> Kernel:
    workload, candidate = CASES[name]
    kernel = schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), kernel.reason
    return kernel


def source_of(func: Any, device: CUDAModel) -> str:
    target = device.model.target()
    lib = tvm.compile(tvm.IRModule({"main": func}), target=target, tir_pipeline=register())
    return str(lib.mod.imports[0].inspect_source())


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # the source is all that is looked at


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.grid
def test_lowers_to_cuda(name: str, device: str) -> None:
    source = source_of(scheduled(name, DEVICES[device]).func, DEVICES[device])
    _, candidate = CASES[name]
    is_tensor_core = candidate.family == "cuda.mma"
    assert ("mma.sync" in source) == is_tensor_core
    assert ("ldmatrix" in source) == is_tensor_core
    warp_memory = [int(size) for size in re.findall(r"_warp_ptr\w*\[(\d+)\];", source)]
    assert max(warp_memory, default=0) <= 128, "a fragment was not lowered to a lane's part"


def test_copies_are_asynchronous_and_wide() -> None:
    source = source_of(scheduled("tails", DEVICES["H100"]).func, DEVICES["H100"])
    asynchronous = re.findall(r"cp\.async\.(\w+)\.shared\.global \[%0\], \[%1\], %2;", source)
    assert asynchronous == ["cg", "cg"], "16 bytes each: those in front of the end of k, and those up to it"
    assert "*(uint4*)(" in source, "16-byte stores"


@pytest.mark.parametrize("name", ["masked", "masked float32"])
def test_booleans_are_bytes(name: str) -> None:
    """TVM reads four of them as four shorts."""
    source = source_of(scheduled(name, DEVICES["H100"]).func, DEVICES["H100"])
    assert "*(uint*)(((uchar*)seen_ptr)" in source
    assert "*(ushort4*)(" not in source
    if compiler():
        assert resources(compile_source(source, DEVICES["H100"].model.target()))


def test_int8_is_swizzled() -> None:
    source = source_of(scheduled("int8", DEVICES["A100"]).func, DEVICES["A100"])
    copies = [line for line in source.splitlines() if line.lstrip().startswith("ptx_cp_async")]
    assert copies
    assert all("^" in line for line in copies)


@pytest.mark.parametrize("name", ["nt", "tails", "int8", "convolution", "tf32", "nn"])
def test_shared_memory_is_foreseen(name: str) -> None:
    device = DEVICES["A100"]
    workload, candidate = CASES[name]
    func = scheduled(name, device).func.with_attr("target", device.model.target())
    with device.model.target():
        text = lower_s_tir(tvm.IRModule({"main": func})).script()
    (size,) = re.findall(r'buf_dyn_shmem = T\.alloc_buffer\(\((\d+),\), "uint8"', text)
    form = gemm(workload)
    assert isinstance(form, Gemm)
    foreseen = tile_of(candidate).shared_bytes(form)
    assert int(size) <= foreseen <= device.model.shared_per_block_bytes


def test_what_is_a_trace() -> None:
    device = DEVICES["H100"]
    assert scheduled("convolution", device).trace is not None
    assert scheduled("odd", device).trace is not None
    assert scheduled("packed", device).trace is None
    assert scheduled("sums in half", device).trace is None


def test_packed_constant_is_padded() -> None:
    ((param, packing),) = scheduled("packed", DEVICES["H100"]).packings
    assert param == 1
    assert packing.shape == (1, 16, 512)


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("name", ["nt", "tails", "convolution", "float32"])
def test_nothing_spills(name: str) -> None:
    device = DEVICES["H100"]
    source = source_of(scheduled(name, device).func, device)
    for kernel in resources(compile_source(source, device.model.target())):
        assert kernel.stack_bytes == 0, kernel
        assert kernel.registers <= 255


REASONS = [
    (product(64, 64, 64, "nt", **FP32), allowing(CUDA("H100"), exact=True), "tf32 is not allowed"),
    (product(64, 64, 64, "nt"), CUDA("V100"), "sm_70 has no mma.sync"),
    (product(64, 64, 64, "nt"), allowing(CUDA("H100"), tensor_core="off"), "switched off"),
    (product(1, 64, 64, "nt"), CUDA("H100"), "a matrix times a vector"),
    (product(64, 64, 64, "nt", dtype="float64", acc="float64"), CUDA("H100"), "operands of float64"),
]


@pytest.mark.parametrize(("workload", "device", "reason"), REASONS, ids=[reason for *_, reason in REASONS])
def test_why_not_on_tensor_cores(workload: Workload, device: CUDAModel, reason: str) -> None:
    form = gemm(workload)
    assert isinstance(form, Gemm)
    device = as_device(device)
    assert reason in tensor_core_obstacle(form, device.model, device.numerics)
    assert proposed(MMA, workload, device) == []
    refused = schedule(workload, mma(64, 64, 32, 2, 2, 2), device)
    assert isinstance(refused, NotApplicable)
    assert reason in refused.reason


POLICY_CASES = {
    "large": product(8192, 8192, 8192, "nt", bias=True),
    "skinny": product(512, 16, 512, "nt"),
    "odd": product(197, 1000, 197, "nn", batch=3),
    "int8": product(512, 64, 512, "nn", constant=True, **INT8),
    "convolution": convolution(128, 14, 256, 256, 3, bias=True),
    "one image": convolution(1, 7, 512, 512, 3, bias=True),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POLICY_CASES)
def test_every_candidate_fits(name: str, device: str) -> None:
    workload, model = POLICY_CASES[name], DEVICES[device]
    form = gemm(workload)
    assert isinstance(form, Gemm)
    found = proposed(MMA, workload, model)
    assert found == proposed(MMA, workload, model), "the same inputs give the same candidates"
    assert [c.predicted_s for c in found] == sorted(c.predicted_s for c in found)
    assert len({(c["bm"], c["bn"]) for c in found}) >= 4, "one hypothesis only"
    for candidate in found:
        tile = tile_of(candidate)
        assert tile_obstacle(tile, form, model.model) == ""
        assert tile.shared_bytes(form) <= model.model.shared_per_block_bytes
        assert tile.registers(form) * tile.threads <= model.model.registers_per_sm
        assert tile.threads % 32 == 0
        assert candidate.predicted_s > form.flops / model.model.mma_flops(form.a.dtype)


def test_skinny_products_have_small_tiles() -> None:
    best = proposed(MMA, POLICY_CASES["skinny"], DEVICES["H100"])[0]
    assert (best["bm"], best["bn"]) == (16, 16)


def test_a_single_image_splits_k() -> None:
    assert any(int(c["split"]) > 1 for c in proposed(MMA, POLICY_CASES["one image"], DEVICES["H100"])[:5])


def test_large_products_rasterise() -> None:
    assert any(int(c["raster"]) > 1 for c in proposed(MMA, POLICY_CASES["large"], DEVICES["H100"])[:5])


@pytest.mark.parametrize("name", ["large", "skinny", "convolution"])
def test_cuda_cores_compete(name: str) -> None:
    model = DEVICES["H100"]
    found = proposed(SIMT, POLICY_CASES[name], model)
    assert found
    assert min(c.predicted_s for c in found) > proposed(MMA, POLICY_CASES[name], model)[0].predicted_s
    assert proposed(SIMT, POLICY_CASES[name], allowing(model.model, tensor_core="only", tf32=True)) == []


def test_one_built_of_each_policy() -> None:
    for workload in (POLICY_CASES["odd"], POLICY_CASES["one image"]):
        for family in (MMA, SIMT):
            best, *_ = proposed(family, workload, DEVICES["H100"])
            kernel = schedule(workload, best, DEVICES["H100"])
            assert isinstance(kernel, Kernel), kernel.reason
            assert "__global__" in source_of(kernel.func, DEVICES["H100"])


def of_conditions() -> Any:
    """x > 0 as float32, two elements of a thread at once."""
    x = te.placeholder((128,), "float16", "x")
    sign = te.compute(x.shape, lambda i: (x[i] > tirx.const(0, "float16")).astype("float32"))
    sch = Schedule(te.create_prim_func([x, sign]))
    outer, inner = sch.split(sch.get_loops(all_blocks(sch)[0])[0], [None, 2])
    sch.bind(outer, "threadIdx.x")
    sch.vectorize(inner)
    return sch.mod["main"]


@pytest.mark.skipif(not compiler(), reason="neither NVRTC nor nvcc is installed")
def test_padded_bytes_and_cast_conditions_compile() -> None:
    """A matrix of bytes that ends within a tile, and a condition in two lanes: TVM prints neither as CUDA."""
    device = as_device(CUDA("H100"))
    ragged = schedule(product(64, 32, 112, "nt", **INT8), mma(32, 32, 64, 1, 2, 1), device)
    assert isinstance(ragged, Kernel)
    for func, word in ((ragged.func, "make_int4(0, 0, 0, 0)"), (of_conditions(), "ushort2")):
        built = tvm.compile(func.with_attr("global_symbol", "main"), device.model.target(), tir_pipeline=register())
        text = built.mod.imports[0].inspect_source()
        assert word in text
        compile_source(text, device.model.target())
