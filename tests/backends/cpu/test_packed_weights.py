"""A few rows times weights of 4 and 8 bits: right for every shape, in few instructions, proposed where it belongs."""

from __future__ import annotations

import re
from dataclasses import replace
from math import erf, sqrt
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax, te

from subtune import backends
from subtune.backends.cpu.device import CPU, CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.driver import compile_model
from subtune.measure import LocalMeasurer
from subtune.passes.exprs import make_const
from subtune.patterns.packed_product import PackedProduct, packed_product
from subtune.patterns.stages import anchored
from tests.backends.cpu.test_bf16 import run, scheduled
from tests.backends.workloads import softmax
from tests.packed_weights import PACKS, Case, F

HOST = CPU("auto", threads=2)
CASES = {
    "a vector": Case(1, 64, 128),
    "int4": Case(2, 64, 128, signed=True),
    "zero points": Case(1, 64, 128, zero="blocks"),
    "short blocks": Case(2, 64, 128, size=16, zero="blocks"),
    "long blocks": Case(5, 64, 256, size=128, zero="blocks"),
    "a block for a row": Case(2, 48, 96, size=96),
    "a row of no whole words": Case(2, 48, 83, size=83),
    "a short last block": Case(2, 64, 80, zero="blocks"),
    "an odd row": Case(1, 64, 77, size=16, zero="blocks"),
    "few columns": Case(3, 2, 64),
    "odd columns": Case(2, 77, 64, zero="blocks"),
    "odd everything": Case(5, 37, 101, size=32),
    "sixteen rows": Case(16, 80, 64, zero="blocks"),
    "uint8": Case(2, 64, 128, bits=8),
    "uint8 with zero points": Case(5, 65, 128, bits=8, zero="blocks"),
    "int8": Case(1, 64, 96, bits=8, signed=True, size=96),
    "int8 with zero points": Case(16, 64, 96, bits=8, signed=True, zero="blocks"),
    "int8 of no whole words": Case(1, 33, 95, bits=8, signed=True, size=95),
}


def form_of(workload: Workload) -> PackedProduct:
    found = anchored(workload, packed_product)
    assert not isinstance(found, NotApplicable), found.reason
    return found[2]


def given(workload: Workload) -> list[np.ndarray]:
    """Any bits, and an array for the result."""
    rng = np.random.default_rng(0)
    return [
        rng.integers(np.iinfo(arg.dtype).min, np.iinfo(arg.dtype).max + 1, arg.shape).astype(arg.dtype)
        if "int" in arg.dtype
        else rng.standard_normal([int(d) for d in arg.shape]).astype(arg.dtype)
        for arg in workload.args
    ]


def product(workload: Workload, arrays: list[np.ndarray]) -> np.ndarray:
    form = form_of(workload)
    bits = arrays[form.packed]
    if form.bits == 4:
        bits = np.stack([bits & 15, bits >> 4], -1).reshape(form.columns, -1)
    block = np.arange(form.length) // form.group
    zero = arrays[form.zero][:, block] if form.zero >= 0 else form.point
    weights = (bits[:, : form.length].astype(np.float64) - zero) * arrays[form.scale][:, block]
    return arrays[form.x].astype(np.float64) @ weights.T


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 2e-6) -> None:
    assert got.shape == wanted.shape
    scale = np.sqrt(np.mean(wanted**2))
    assert np.abs(got - wanted).max() <= tolerance * scale * 5


def of_vectors(vectors: int, **knobs: Any) -> Candidate:
    return Candidate.make("packed_weights", 1.0, vectors=vectors, **knobs)


@pytest.mark.parametrize("vectors", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.grid
def test_products(name: str, vectors: int) -> None:
    workload = CASES[name].workload()
    arrays = given(workload)
    kernel = scheduled(workload, of_vectors(vectors, serial=vectors == 2, ahead=vectors == 4), HOST)
    close(run(workload, kernel, HOST, arrays), product(workload, arrays))


@pytest.mark.parametrize("name", ["a vector", "odd columns", "sixteen rows", "int8 with zero points"])
def test_what_follows(name: str) -> None:
    case = CASES[name]
    bias = make_const(np.zeros(case.columns, F))
    workload = case.workload(lambda y, x, r: relax.op.add(relax.op.nn.gelu(relax.op.add(y, bias)), r))
    arrays = given(workload)
    (b,) = [a for a in arrays if a.ndim == 1]
    (r,) = [a for a in arrays[:-1] if a.shape == (case.rows, case.columns)]
    hidden = product(workload, arrays) + b
    wanted = hidden * (1 + np.vectorize(erf)(hidden / sqrt(2))) / 2 + r
    for vectors in (1, 4):
        close(run(workload, scheduled(workload, of_vectors(vectors), HOST), HOST, arrays), wanted, 1e-5)


@pytest.mark.parametrize("name", ["haswell", "cortex-a72"])
@pytest.mark.parametrize("case", ["zero points", "odd everything", "sixteen rows", "int8"])
def test_narrower_vectors(name: str, case: str) -> None:
    """The schedules for the other processor, built for this one."""
    device, workload = CPU(name, threads=2), CASES[case].workload()
    arrays = given(workload)
    found = [one for one in backends.candidates(workload, device, topk=40) if one.family == "packed_weights"]
    kernel = scheduled(workload, found[0], device)
    close(run(workload, kernel, HOST, arrays), product(workload, arrays))


def machine_code(kernel: Kernel, device: CPUModel) -> str:
    func = kernel.func.with_attr("global_symbol", "main")
    return str(tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE).mod.inspect_source("asm"))


@pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="LLVM here builds for another architecture")
@pytest.mark.parametrize("case", ["a vector", "a block for a row"])
def test_fifteen_instructions_make_floats_of_a_word(case: str) -> None:
    """Two of eight nibbles are looked up; six are selected with the exponent's bits, and subtracted; one shift is for
    all. A multiplication and addition for each follows."""
    zen4, workload = CPU("znver4", threads=2), CASES[case].workload()
    text = machine_code(scheduled(workload, of_vectors(1), zen4), zen4)
    loop = next(part for part in re.split(r"\n\.L\w+:", text) if "vpternlogd" in part)
    words = loop.count("vpsrld")
    assert words
    # LLVM writes either: they move the same bits
    assert len(re.findall(r"vperm(ps|d)\s.*%zmm", loop)) == 2 * words
    assert loop.count("vpternlogd") == loop.count("vaddps") + loop.count("vsubps") == 6 * words
    assert 8 * words <= loop.count("vfmadd") / form_of(workload).rows <= 9 * words + 1
    assert "vcvt" not in loop
    assert "vgather" not in loop


@pytest.mark.skipif(not HOST.triple.startswith("x86_64"), reason="LLVM here builds for another architecture")
@pytest.mark.parametrize(
    ("name", "multiplies", "wider"),
    [("haswell", r"vfmadd\w+ps\s.*%ymm", "zmm"), ("cortex-a72", r"\bfmla(\.4s)?\s+v\d+", "ymm")],
)
def test_avx2_and_neon_are_built(name: str, multiplies: str, wider: str) -> None:
    workload, device = CASES["zero points"].workload(), CPU(name, threads=2)
    best = next(one for one in backends.candidates(workload, device, topk=40) if one.family == "packed_weights")
    text = machine_code(scheduled(workload, best, device), device)
    assert re.search(multiplies, text)
    assert wider not in text


def is_of_digits(candidate: Candidate) -> bool:
    return bool(dict(candidate.knobs).get("digits"))


def families(workload: Workload, device: CPUModel = HOST) -> dict[str, float]:
    """Predicted seconds of the best of each."""
    found = backends.candidates(workload, device, topk=40)
    return {one.family: min(c.predicted_s for c in found if c.family == one.family) for one in found}


def test_predicted_is_the_time_to_read_the_bits() -> None:
    """A vector times large weights; not of rows enough to be bound by arithmetic."""
    zen4 = CPU("znver4", threads=2)
    large = Case(1, 4096, 4096)
    workload = large.workload()
    seconds = families(workload, zen4)["packed_weights"]
    nbytes = form_of(workload).weight_bytes + 4 * 4096 * large.blocks
    assert nbytes == 4096 * 4096 // 2 * 5 // 4
    assert nbytes / zen4.dram_bytes_per_s < seconds < 3 * nbytes / zen4.dram_bytes_per_s
    many = families(replace(large, rows=16).workload(), zen4)["packed_weights"]
    assert many > 4 * seconds


def test_tables_are_predicted_to_be_faster() -> None:
    """Only for nibbles: a processor that is the same but for the instruction takes longer."""
    zen4 = CPU("znver4", threads=2)
    without = replace(zen4, features=tuple(one for one in zen4.features if one != "avx512f"))

    def seconds(bits: int, device: CPUModel) -> float:
        found = backends.candidates(Case(1, 4096, 4096, bits=bits).workload(), device, topk=40)
        return min(one.predicted_s for one in found if one.family == "packed_weights" and not is_of_digits(one))

    assert seconds(4, zen4) < seconds(4, without)
    assert seconds(8, zen4) == seconds(8, without)


def test_they_are_proposed_first() -> None:
    for name in ("a vector", "sixteen rows", "int8", "odd everything"):
        found = families(CASES[name].workload())
        assert min(found, key=found.__getitem__) == "packed_weights"


def refused(workload: Workload, why: str) -> None:
    found = backends.schedule(workload, of_vectors(1), HOST)
    assert isinstance(found, NotApplicable)
    assert why in found.reason
    assert "packed_weights" not in families(workload)


def blocks_of(size: int) -> Workload:
    """No pass makes it so."""
    x, w = te.placeholder((2, 96), "float32", "x"), te.placeholder((64, 96), "int8", "w")
    scale, k = te.placeholder((64, 96 // size), "float32", "s"), te.reduce_axis((0, 96), "k")
    weight = te.compute((64, 96), lambda i, j: w[i, j].astype("float32") * scale[i, j // size], "weight")
    y = te.compute((2, 64), lambda i, j: te.sum(x[i, k] * weight[j, k], axis=k), "y")
    return Workload.of(te.create_prim_func([x, w, scale, y]).with_attr("layout_free_buffers", [1, 2]), 1)


def test_what_is_refused() -> None:
    refused(blocks_of(6), "no whole words")
    refused(Case(17, 64, 96).workload(forms=Forms(packed_rows=32)), "17 rows")
    refused(Case(2, 64, 96, dtype="float16").workload(forms=replace(PACKS, packed_halves=True)), "weights of float16")
    refused(softmax(5, 19), "no bytes")


def decoder(folder: Path) -> Path:
    """Two layers of MatMulNBits, and a product with blocks of int4."""
    rng, size = np.random.default_rng(0), 128
    held, nodes = {}, []
    for layer, x in enumerate(("x", "y0")):
        held[f"b{layer}"] = rng.integers(0, 256, (size, size // 32, 16)).astype(np.uint8)
        held[f"s{layer}"] = rng.uniform(0.01, 0.02, (size, size // 32)).astype(F)
        attrs = {"domain": "com.microsoft", "K": size, "N": size, "bits": 4, "block_size": 32}
        nodes.append(helper.make_node("MatMulNBits", [x, f"b{layer}", f"s{layer}"], [f"h{layer}"], **attrs))
        nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"y{layer}"]))
    held["w"] = rng.integers(-8, 8, (size, size)).astype(ml_dtypes.int4)
    held["s"] = rng.uniform(0.01, 0.02, (size // 32, size)).astype(F)
    held["z"] = rng.integers(-3, 4, (size // 32, size)).astype(ml_dtypes.int4)
    nodes.append(helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], axis=0, block_size=32))
    nodes.append(helper.make_node("MatMul", ["y1", "f"], ["out"]))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, size]) for name in ("x", "out")]
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "m.onnx")
    return folder / "m.onnx"


def test_a_model_is_as_large_as_its_bits(workers: LocalMeasurer, tmp_path: Path) -> None:
    """Compiled and compared with ONNX Runtime; every product is tuned, what is shipped has its weights packed."""
    path = decoder(tmp_path)
    report = compile_model(path, tmp_path / "a", topk=2, database=tmp_path / "db", measurer=workers)
    assert "ONNX Runtime" in report.verified
    assert [(row.name, row.uses) for row in report.rows] == [
        ("fused_weights_permute_dims_matmul_relu", 2), ("fused_weights_permute_dims_matmul", 1),
    ]  # fmt: skip
    nbytes = 3 * 128 * 128 // 2 + 3 * 128 * 4 * 4 + 128 * 4
    assert (report.weights.own_bytes, report.weights.packed_bytes) == (nbytes, nbytes)
    assert nbytes <= (tmp_path / "a" / "weights.bin").stat().st_size < 1.2 * nbytes
