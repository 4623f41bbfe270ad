"""Products with numbers of their rows: recognised, computed on the processor, built for Hopper."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.base import Problem
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.building.parsed_once import parsed_once
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.wgmma.schedule import WgmmaKnobs
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma_rows.schedule import row_kernel, schedule
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.numerics import PLAIN
from subtune.core.workload import Workload
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.patterns.contraction import Contraction
from subtune.patterns.recognise import recognise
from subtune.patterns.row_product import RowProduct, row_product
from subtune.pipeline import normalize
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.storing import storing
from tests.backends.cuda.test_wgmma import HERE, source
from tests.backends.cuda.test_wgmma_store import fragments, tiles_of

H200 = CUDA("H200")
_GUARD = 128
FORMS = Forms(carries_norms=True)
FRONT, BACK, BETWEEN = "moments", "scales", "both"


def model(m: int, n: int, k: int, norm: str = "layer", activation: str = "", is_after: bool = False,
          residual: bool = True) -> Any:  # fmt: skip
    """act(norm(x @ v + a + r) @ w + b); with `is_after`, norm(y + what it was made of), as BERT has it."""
    rng = np.random.default_rng(3)
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((m, k), "float16"))
    r = relax.Var("r", relax.TensorType((m, n), "float16"))

    def const(*shape: int, by: float = 1.0) -> Any:
        return relax.const((rng.standard_normal(shape) * by).astype("float16"))

    def emit(name: str, *args: Any, **attrs: Any) -> Any:
        module, _, short = name.rpartition(".")
        return bb.emit(getattr(op.nn if module else op, short)(*args, **attrs))

    def normed(value: Any) -> Any:
        if norm == "rms":
            return emit("nn.rms_norm", value, const(n), axes=[-1])
        return emit("nn.layer_norm", value, const(n), const(n), axes=[-1])

    with bb.function("main", [x, r]):
        with bb.dataflow():
            y = emit("add", emit("matmul", x, const(k, n, by=k**-0.5)), const(n))
            y = normed(emit("add", y, r) if residual else y)
            z = emit("add", emit("matmul", y, const(n, n, by=n**-0.5)), const(n))
            z = emit("nn.gelu", z) if activation else z
            if is_after:
                z = emit("matmul", normed(emit("add", z, y)), const(n, k, by=n**-0.5))
            result = bb.emit_output(z)
        bb.emit_func_output(result)
    return normalize(bb.get(), PLAIN, forms=FORMS)


def fused(which: str, **given: Any) -> Workload:
    """The first kernel of that kind that is proposed for it."""
    return _proposed(tuple(sorted(given.items())))[which]


@lru_cache(maxsize=8)
def _proposed(given: tuple[tuple[str, Any], ...]) -> dict[str, Workload]:
    mod = model(**dict(given))
    graph = partition(mod)
    found = lower_regions(mod, graph, alternatives(graph, FORMS), extract(outline(mod, graph))).subgraphs
    kinds = {(False, True): FRONT, (True, False): BACK, (True, True): BETWEEN}
    first: dict[str, Workload] = {}
    for subgraph in found:
        pattern = recognise(subgraph.workload)
        if isinstance(pattern, RowProduct):
            first.setdefault(kinds[bool(pattern.steps), pattern.has_moments], subgraph.workload)
    return first


CASES: dict[str, tuple[str, dict[str, Any], WgmmaKnobs]] = {
    "moments": (FRONT, {}, WgmmaKnobs("128", 192, 5, 2, False, 1, 1)),
    "moments, no residual": (FRONT, {"residual": False}, WgmmaKnobs("128", 128, 5, 2, False, 1, 1)),
    "moments, rows beyond": (FRONT, {"m": 1064}, WgmmaKnobs("192", 128, 4, 3, False, 1, 1)),
    "layer norm": (BACK, {}, WgmmaKnobs("128", 192, 4, 2, False, 1, 1)),
    "consumers in turns, gelu": (BACK, {"activation": "gelu"}, WgmmaKnobs("128", 128, 5, 2, True, 1, 8)),
    "RMS": (BACK, {"norm": "rms"}, WgmmaKnobs("192", 192, 3, 3, False, 1, 1)),
    "rows beyond, two blocks": (BACK, {"m": 1064}, WgmmaKnobs("64", 64, 4, 1, False, 2, 1)),
    "a cluster": (BACK, {}, WgmmaKnobs("128", 128, 4, 2, False, 1, 1, cluster=2)),
    "norms on either side": (BETWEEN, {"is_after": True}, WgmmaKnobs("128", 192, 4, 2, False, 1, 1)),
}  # fmt: skip


def fused_case(case: str) -> tuple[Workload, WgmmaKnobs]:
    which, given, knobs = CASES[case]
    return fused(which, **{"m": 1024, "n": 768, "k": 256, **given}), knobs


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("case", [case for case in CASES if "beyond" not in case])
def test_kernels_build_without_spills(case: str) -> None:
    workload, knobs = fused_case(case)
    kernel = schedule(Problem(workload, H200), knobs)
    assert isinstance(kernel, Kernel), kernel
    assert "wgmma.mma_async" in source(kernel.func)
    (used,) = resources(compile_source(cuda_on_cpu.source(kernel.func, H200), H200.target()))
    assert used.stack_bytes == 0


@parsed_once()
def stored(workload: Workload, tiling: Tiling) -> tuple[Any, int, tuple[int, int]]:
    """A kernel that stores the sums it is given; its blocks, and which arguments are multiplied."""
    found = row_kernel(Problem(workload, H200), tiling)
    assert isinstance(found, tuple), found
    product, store, rows, params = found
    a, b = ([p.same_as(operand) for p in params].index(True) for operand in product.operands)
    read = [p for i, p in enumerate(params) if i != b]
    return storing(product.walk, store, read, product.walk.tiles, rows), product.walk.tiles, (a, b)


STORED = {
    "moments": (FRONT, {}, Tiling((128,), 192, 2, 2)),
    "moments of what is exchanged in halves": (FRONT, {"residual": False}, Tiling((64,), 128, 2, 1)),
    "scales": (BACK, {}, Tiling((64,), 128, 2, 1)),
    "scales of RMS, gelu": (BACK, {"norm": "rms", "activation": "gelu"}, Tiling((192,), 128, 2, 3)),
    "scales and moments, rows beyond": (BETWEEN, {"is_after": True, "m": 1064}, Tiling((64,), 64, 2, 1)),
}  # fmt: skip


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", STORED)
def test_tiles_are_stored_with_numbers_of_their_rows(case: str, tmp_path: Path) -> None:
    which, given, tiling = STORED[case]
    workload = fused(which, **{"m": 1024, "n": 384, "k": 64, **given})
    func, blocks, multiplied = stored(workload, tiling)
    inputs = inputs_of(workload)
    a, b = (inputs[i].astype("float64") for i in multiplied)
    arrays: dict[str, np.ndarray] = {"sums": fragments(tiles_of(a @ b, tiling), tiling).astype("float32")}
    names = [str(p.name) for p in workload.func.params]
    results = []
    for name, arg in zip(names, workload.args, strict=True):
        if arg.is_output:
            results.append(np.full(int(np.prod(arg.shape)) + 2 * _GUARD, -7, arg.dtype))
            arrays[name] = results[-1][_GUARD:]
        else:
            arrays[name] = inputs[len(arrays) - 1 - len(results)]
    code = source(func)
    read = re.search(r"main_kernel\(([^)]*)\);", code)
    assert read
    used = {
        name: arrays[name] for name in arrays if f"{name}_ptr" in read.group(1) or f" {name}," in f"{read.group(1)},"
    }
    cuda_on_cpu.launch(code, "main_kernel", used, blocks, 128 * tiling.consumers, tmp_path)
    for whole, want in zip(results, cuda_on_cpu.reference(workload, inputs), strict=True):
        assert (whole[:_GUARD] == -7).all()
        assert (whole[-_GUARD:] == -7).all()
        found = whole[_GUARD:-_GUARD].reshape(want.shape).astype("float64")
        np.testing.assert_allclose(found, want, rtol=4e-3, atol=4e-3 * np.abs(want).max())


def inputs_of(workload: Workload) -> list[np.ndarray]:
    """Random ones; no squares below zero."""
    rng = np.random.default_rng(1)
    made = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    return [np.abs(x) if x.dtype == np.float32 and x.ndim > 1 else x for x in made]


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_products_with_numbers_of_their_rows_are_recognised(norm: str) -> None:
    front, back = (recognise(fused(which, m=1024, n=384, k=64, norm=norm)) for which in (FRONT, BACK))
    assert isinstance(front, RowProduct)
    assert isinstance(back, RowProduct)
    assert (front.has_moments, front.steps, front.numbers) == (True, (), ())
    assert not back.has_moments
    assert len(back.steps) == {"layer": 3, "rms": 2}[norm]
    assert [step for _, step in back.numbers] == [len(back.steps) - 1]
    for pattern in (front, back):
        assert isinstance(recognise(pattern.front), Contraction)
        assert pattern.front.num_outputs == 1


def test_other_results_are_no_moments() -> None:
    workload = fused(FRONT, m=1024, n=384, k=64)
    text = workload.func.script()
    assert "T.float32(0.015625)" in text
    other = tvm.script.from_source(text.replace("T.float32(0.015625)", "T.float32(0.5)"))
    assert isinstance(row_product(workload.func, 3), RowProduct)
    assert row_product(other, 3) == NotApplicable("the other results are no moments of the first")


@pytest.mark.parametrize("which", [FRONT, BACK])
def test_candidates_are_kernels(which: str) -> None:
    workload = fused(which, m=4096, n=768, k=768)
    found = [c for c in backends.candidates(workload, H200, 100) if c.family == "cuda.wgmma_rows"]
    assert found
    for candidate in found[:8]:
        assert isinstance(backends.schedule(workload, candidate, H200), Kernel), candidate


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("case", CASES)
def test_results_on_a_gpu(case: str) -> None:
    workload, knobs = fused_case(case)
    inputs = inputs_of(workload)
    wanted = cuda_on_cpu.reference(workload, inputs)
    kernel = schedule(Problem(workload, H200), knobs)
    assert isinstance(kernel, Kernel)
    with H200.target():
        built = tvm.compile(
            kernel.func.with_attr("global_symbol", "main"), target=H200.target(), tir_pipeline=register()
        )
    packed, device = dict(kernel.packings), tvm.cuda(0)
    arrays = [tvm.runtime.tensor(packed[i](x) if i in packed else x, device) for i, x in enumerate(inputs)]
    outputs = [arg for arg in workload.args if arg.is_output]
    results = [tvm.runtime.tensor(np.full(arg.shape, np.nan, arg.dtype), device) for arg in outputs]
    for _ in range(3):
        built["main"](*arrays, *results)
    for result, want in zip(results, wanted, strict=True):
        limit = 4e-3 * np.abs(want).max()
        np.testing.assert_allclose(result.numpy().astype("float64"), want, rtol=4e-3, atol=limit)
