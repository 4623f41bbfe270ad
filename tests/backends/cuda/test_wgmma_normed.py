"""Rows that a block holds in registers: normalised on the processor, and built for Hopper."""

from __future__ import annotations

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
from subtune.backends.cuda.families.wgmma_normed.schedule import NormedKnobs, normed_product
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.patterns.normed import Normed
from subtune.patterns.recognise import recognise
from subtune.pipeline import normalize
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.storing import storing
from tests.backends.cuda.test_wgmma import HERE, source
from tests.backends.cuda.test_wgmma_store import fragments, tiles_of

H200 = CUDA("H200")
FORMS = Forms(normed_columns=256)
_GUARD = 128


def model(m: int, n: int, k: int, norm: str, residual: bool, dtype: str, is_stored: bool) -> Any:
    """norm(x @ w + b [+ r]); with `is_stored`, what is normalised is a result, too."""
    bb = relax.BlockBuilder()
    shapes = [(m, k), *([(m, n)] if residual else [])]
    inputs = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, shape in enumerate(shapes)]

    def ones(*shape: int) -> Any:
        return relax.op.astype(relax.const(np.ones(shape, "float32")), dtype)

    def varied(first: float) -> Any:  # equal numbers would be none that a kernel reads
        return relax.op.astype(relax.const(np.linspace(first, 1.5, n, dtype="float32")), dtype)

    with bb.function("main", inputs):
        with bb.dataflow():
            y = bb.emit(op.add(bb.emit(op.matmul(inputs[0], bb.emit(ones(k, n)))), bb.emit(ones(n))))
            y = bb.emit(op.add(y, inputs[1])) if residual else y
            scale = bb.emit(varied(0.5))
            if norm == "layer":
                z = bb.emit(op.nn.layer_norm(y, scale, bb.emit(varied(-1)), axes=[-1]))
            else:
                z = bb.emit(op.nn.rms_norm(y, scale, axes=[-1]))
            result = bb.emit_output(relax.Tuple([y, z]) if is_stored else z)
        bb.emit_func_output(result)
    return normalize(bb.get())


def fused(
    m: int, n: int, k: int, norm: str = "layer", residual: bool = True, dtype: str = "float16", is_stored: bool = False
) -> Workload:
    """The one kernel that is proposed for it."""
    mod = model(m, n, k, norm, residual, dtype, is_stored)
    graph = partition(mod)
    subgraphs = extract(outline(mod, graph))
    found = lower_regions(mod, graph, alternatives(graph, FORMS), subgraphs).subgraphs
    (one,) = [s for s in found if isinstance(recognise(s.workload), Normed)]
    return one.workload


CASES: dict[str, tuple[dict[str, Any], NormedKnobs]] = {
    "one consumer": ({"n": 64}, NormedKnobs(64, 2, 1)),
    "two consumers, and rows beyond": ({"m": 200, "n": 96}, NormedKnobs(128, 2, 2)),
    "three consumers, RMS": ({"n": 192, "norm": "rms"}, NormedKnobs(192, 2, 3)),
    "all columns of a multiplication": ({"n": 256}, NormedKnobs(128, 2, 2)),
    "no residual, RMS, what is normalised as well": (
        {"n": 128, "norm": "rms", "residual": False, "is_stored": True}, NormedKnobs(64, 2, 1)),
    "what is normalised as well": ({"n": 128, "is_stored": True}, NormedKnobs(128, 2, 2)),
}  # fmt: skip


@parsed_once()
def stored(workload: Workload, knobs: NormedKnobs) -> tuple[Any, int, Any]:
    """A kernel that normalises the sums it is given; its blocks, and the product."""
    problem = Problem(workload, H200)
    found = normed_product(problem, knobs)
    assert isinstance(found, tuple), found
    product, store, buffers = found
    walk = product.walk
    blocks = -(-walk.tiles // 3)  # three tiles for each
    params = [b for b in buffers.values() if not any(b.same_as(operand) for operand in product.operands)]
    return storing(walk, store, params, blocks), blocks, product


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", CASES)
def test_rows_are_normalised(case: str, tmp_path: Path) -> None:
    given, knobs = CASES[case]
    given = {"m": 192, "k": 64, **given}
    workload = fused(**given)
    func, blocks, product = stored(workload, knobs)
    rng = np.random.default_rng(0)
    total = rng.standard_normal((given["m"], given["n"])) * 3 + 1
    arrays = {"sums": fragments(tiles_of(total, product.walk.tiling), product.walk.tiling)}
    arrays["sums"] = arrays["sums"].astype("float32")
    x, made = total, []
    read = [str(operand.name) for operand in product.operands]
    for arg in workload.args:
        if arg.is_output:
            made.append(np.full(np.prod(arg.shape) + 2 * _GUARD, -7, arg.dtype))
            arrays[arg.name] = made[-1][_GUARD:]
        elif arg.name not in read:
            arrays[arg.name] = rng.standard_normal(arg.shape).astype(arg.dtype)
    rest = [arrays[arg.name] for arg in workload.args if not arg.is_output and arg.name not in read]
    wide = [array for array in rest if array.ndim > 1]
    narrow = [array for array in rest if array.ndim == 1]
    (bias,) = (array.astype("float64") for array in narrow if array.dtype == "float32")
    scale, *shift = (array.astype("float64") for array in narrow if array.dtype == "float16")  # as the model has them
    x = total + bias + sum(array.astype("float64") for array in wide)
    if given.get("norm") == "rms":
        wanted = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale
    else:
        centred = x - x.mean(-1, keepdims=True)
        wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift[0]
    code = source(func)
    cuda_on_cpu.launch(code, "main_kernel", arrays, blocks, 128 * product.walk.tiling.consumers, tmp_path)
    for whole, expected in zip(made, [x, wanted] if len(made) == 2 else [wanted], strict=True):
        assert (whole[:_GUARD] == -7).all()
        assert (whole[-_GUARD:] == -7).all()
        np.testing.assert_allclose(whole[_GUARD:-_GUARD].reshape(wanted.shape), expected, rtol=4e-3, atol=8e-3)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_the_norm_behind_a_product_is_recognised(norm: str, is_stored: bool) -> None:
    pattern = recognise(fused(256, 128, 64, norm, is_stored=is_stored))
    assert isinstance(pattern, Normed)
    assert pattern.stores_x == is_stored
    assert pattern.columns == 128
    assert len(pattern.terms) == {"layer": 2, "rms": 1}[norm]
    assert pattern.front.args[-1].dtype == "float16"  # what the model rounds to
    assert pattern.front.num_outputs == 1


def test_products_of_float32_are_left_alone() -> None:
    mod = model(256, 128, 64, "layer", True, "float32", False)
    assert not alternatives(partition(mod), FORMS)
    mod = model(256, 128, 64, "layer", True, "float16", False)
    assert not alternatives(partition(mod))
    assert alternatives(partition(mod), FORMS)
    assert not alternatives(partition(model(256, 272, 64, "layer", True, "float16", False)), FORMS)


@pytest.mark.parametrize(("m", "n", "k"), [(4096, 256, 1024), (512, 128, 1024), (1024, 192, 768), (300, 16, 64)])
def test_candidates_have_whole_rows(m: int, n: int, k: int) -> None:
    workload = fused(m, n, k)
    found = [c for c in backends.candidates(workload, H200, 50) if c.family == "cuda.wgmma_normed"]
    assert found
    for candidate in found:
        assert isinstance(backends.schedule(workload, candidate, H200), Kernel), candidate


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(("m", "n"), [(1000, 256), (384, 64), (4096, 192)])
def test_results_on_a_gpu(m: int, n: int, is_stored: bool) -> None:
    workload = fused(m, n, 256, is_stored=is_stored)
    rng = np.random.default_rng(1)
    given = [arg for arg in workload.args if not arg.is_output]
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in given]
    wanted = cuda_on_cpu.reference(workload, inputs)
    device = tvm.cuda(0)
    for candidate in backends.candidates(workload, H200, 50):
        if candidate.family != "cuda.wgmma_normed":
            continue
        kernel = backends.schedule(workload, candidate, H200)
        assert isinstance(kernel, Kernel)
        func = kernel.func.with_attr("global_symbol", "main")
        with H200.target():
            built = tvm.compile(func, target=H200.target(), tir_pipeline=register())
        packed = dict(kernel.packings)
        arrays = [tvm.runtime.tensor(packed[i](x) if i in packed else x, device) for i, x in enumerate(inputs)]
        results = [tvm.runtime.tensor(np.full(w.shape, np.nan, "float16"), device) for w in wanted]
        built["main"](*arrays, *results)
        for result, want in zip(results, wanted, strict=True):
            limit = 4e-3 * np.abs(want).max()
            np.testing.assert_allclose(
                result.numpy().astype("float64"), want, rtol=4e-3, atol=limit, err_msg=str(candidate)
            )


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("n", [192, 256])
def test_nothing_is_spilled(n: int) -> None:
    """What is loaded ahead and what is kept share the registers with the sums: two consumers have enough of them."""
    workload = fused(16384, n, 1024)
    found = [c for c in backends.candidates(workload, H200, 50) if c.family == "cuda.wgmma_normed"]
    kernel = backends.schedule(workload, next(c for c in found if c.get("consumers") == 2), H200)
    assert isinstance(kernel, Kernel)
    (used,) = resources(compile_source(cuda_on_cpu.source(kernel.func, H200), H200.target()))
    assert used.stack_bytes == 0
