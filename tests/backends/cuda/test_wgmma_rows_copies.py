"""Products that use numbers of their rows and store copies of their results: recognised, run, and built for Hopper."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.base import Problem
from subtune.backends.cuda.building.compiler import compile_source, compiler
from subtune.backends.cuda.building.cubin import resources
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families import FAMILIES, wgmma_rows
from subtune.backends.cuda.families.wgmma.store_copies import product_alone, with_copies
from subtune.backends.cuda.families.wgmma.tiling import Tiling
from subtune.backends.cuda.families.wgmma_rows.schedule import row_kernel
from subtune.core.candidate import DEFAULT
from subtune.core.forms import Forms
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.passes.alternatives import alternatives
from subtune.passes.alternatives_lower import lower_regions
from subtune.passes.carry_norms import carry_norms
from subtune.passes.extract import extract
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.patterns.product_copies import ProductWithCopies
from subtune.patterns.recognise import recognise
from subtune.patterns.row_product import RowProduct
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.copied_workloads import copies_of, outputs_on_gpu
from tests.backends.cuda.proposals import proposed
from tests.backends.cuda.storing import storing
from tests.backends.cuda.test_wgmma import HERE
from tests.backends.cuda.test_wgmma_rows import inputs_of
from tests.backends.cuda.test_wgmma_store import fragments, tiles_of

H200 = CUDA("H200")
FORMS = Forms(carries_norms=True, copies_products=True)
BATCH, DIM = 4, 64


@cache
def workload_of(rows: int, heads: int, width: int, has_moments: bool = False) -> Workload:
    """norm(..) @ w, joined queries, keys and values of `BATCH` times `rows`; keys and values as float32.

    With `has_moments` it is their own norm that others read.
    """
    rng = np.random.default_rng(3)
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((BATCH * rows, width), "float16"))
    joined = 3 * heads * DIM

    def emit(value: Any) -> Any:
        return bb.emit(value)

    def product(y: Any, k: int, n: int) -> Any:
        w = relax.const((rng.standard_normal((k, n)) * k**-0.5).astype("float16"))
        y = emit(op.add(emit(op.matmul(y, w, out_dtype="float32")), relax.const(rng.standard_normal(n).astype("f4"))))
        return emit(op.astype(y, "float16"))

    def normed(y: Any, n: int) -> Any:
        scale, shift = (relax.const(rng.uniform(0.5, 1.5, n).astype("f4")) for _ in range(2))
        return emit(
            op.astype(emit(op.nn.layer_norm(emit(op.astype(y, "float32")), scale, shift, axes=[-1])), "float16")
        )

    def given(lying: Any, i: int) -> Any:
        part = emit(op.strided_slice(lying, [2], [i * heads * DIM], [(i + 1) * heads * DIM]))
        part = emit(op.permute_dims(emit(op.reshape(part, (BATCH, rows, heads, DIM))), [0, 2, 1, 3]))
        return emit(op.astype(part, "float32"))

    with bb.function("main", [x]):
        with bb.dataflow():
            y = product(x if has_moments else normed(product(x, width, width), width), width, joined)
            lying = emit(op.reshape(y, (BATCH, rows, joined)))
            other = product(normed(y, joined), joined, width) if has_moments else emit(op.nn.softmax(lying))
            result = bb.emit_output(relax.Tuple([other, given(lying, 1), given(lying, 2)]))
        bb.emit_func_output(result)
    mod = carry_norms(bb.get(), FORMS)
    graph = partition(mod)
    found = lower_regions(mod, graph, alternatives(graph, FORMS), extract(outline(mod, graph))).subgraphs
    return next(one.workload for one in found if isinstance(_front(one.workload), RowProduct))


def _front(workload: Workload) -> Any:
    pattern = recognise(workload)
    return recognise(pattern.front) if isinstance(pattern, ProductWithCopies) else None


def test_one_family_takes_it() -> None:
    workload = workload_of(264, 2, 128)
    front = _front(workload)
    assert not front.has_moments
    assert len(front.numbers) == 1
    assert [family.name for family in FAMILIES if proposed(family, workload, H200)] == ["cuda.wgmma_rows"]
    found = [c for c in backends.candidates(workload, H200, 100) if c.family == "cuda.wgmma_rows"]
    assert len(found) > 8
    for candidate in found[:4]:
        assert isinstance(backends.schedule(workload, candidate, H200), Kernel), candidate
    assert isinstance(backends.schedule(workload, DEFAULT, H200), Kernel)


def test_candidates_are_those_of_the_product_that_write_more() -> None:
    workload = workload_of(512, 12, 768)
    front = product_alone(Problem(workload, H200))
    best, alone = (
        min(c.predicted_s for c in wgmma_rows.FAMILY.candidates(p)) for p in (Problem(workload, H200), front)
    )
    copied = workload.nbytes - front.workload.nbytes
    assert copied == 2 * BATCH * 512 * 12 * DIM * 4
    assert best > alone + 0.9 * copied / H200.dram_bytes_per_s


CASES = {
    "scales, rows beyond": (False, Tiling((64,), 128, 2, 1)),
    "scales, columns beyond": (False, Tiling((128,), 256, 2, 2)),
    "moments, rows beyond": (True, Tiling((64,), 128, 2, 1)),
}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")
@pytest.mark.parametrize("case", CASES)
def test_tiles_are_stored_with_copies(case: str, tmp_path: Path) -> None:
    has_moments, tiling = CASES[case]
    options = {"heads": 2, "rows": 264, "dim": DIM, "batch": BATCH}
    workload = workload_of(264, 2, 128, has_moments)
    assert _front(workload).has_moments == has_moments
    problem = Problem(workload, H200)
    found = row_kernel(product_alone(problem), tiling)
    assert isinstance(found, tuple), found
    product, store, rows, own = found
    copied = with_copies(problem, store, own)
    assert not isinstance(copied, NotApplicable), copied
    copies, params = copied
    a, b = ([p.same_as(operand) for p in params].index(True) for operand in product.operands)
    read = [p for i, p in enumerate(params) if i != b]
    func = storing(product.walk, replace(store, copies=copies), read, product.walk.tiles, rows)
    code = cuda_on_cpu.source(func, H200)
    inputs = inputs_of(workload)
    total = inputs[a].astype("float64") @ inputs[b].astype("float64")
    outputs = [np.full(arg.shape, np.nan, arg.dtype) for arg in workload.args if arg.is_output]
    arrays = dict(zip((str(p.name) for p in params), [*inputs, *outputs], strict=True))
    arrays["sums"] = fragments(tiles_of(total, tiling), tiling).astype("float32")
    signature = re.search(r"main_kernel\(([^)]*)\);", code)
    assert signature
    used = [param.split()[-1].removesuffix("_ptr") for param in signature.group(1).split(",")]
    given = {name: arrays[name] for name in used}
    cuda_on_cpu.launch(code, "main_kernel", given, product.walk.tiles, 128 * tiling.consumers, tmp_path)
    check(workload, options, inputs, outputs)


def check(workload: Workload, options: dict[str, Any], inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    """The product, and its moments, as the reference has them; and its copies as the product is."""
    *own, keys, values = outputs
    joined, copies = own[0], (keys, values)
    for got, right in zip(own, cuda_on_cpu.reference(workload, inputs), strict=False):
        np.testing.assert_allclose(got.astype("float64"), right, rtol=4e-3, atol=4e-3 * np.abs(right).max())
    for copy, want in zip(copies, copies_of(joined, workload, **options), strict=True):
        assert copy.tobytes() == want.tobytes()


@pytest.mark.skipif(not compiler(), reason="nothing compiles CUDA here")
@pytest.mark.parametrize("tiling", [Tiling((192,), 192, 3, 3), Tiling((128,), 128, 4, 2, True)])
def test_it_builds_without_spills(tiling: Tiling) -> None:
    workload = workload_of(512, 12, 768)
    found = wgmma_rows.FAMILY.schedule(Problem(workload, H200), wgmma_rows.FAMILY.knobs(**tiling.knobs()))
    assert isinstance(found, Kernel), found
    (used,) = resources(compile_source(cuda_on_cpu.source(found.func, H200), H200.target()))
    assert used.stack_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(isinstance(HERE, str) or HERE.capability != 90, reason=f"no Hopper GPU: {HERE}")
@pytest.mark.parametrize("has_moments", [False, True])
def test_copies_on_a_gpu(has_moments: bool) -> None:
    options = {"heads": 2, "rows": 264, "dim": DIM, "batch": BATCH}
    workload = workload_of(264, 2, 128, has_moments)
    inputs = inputs_of(workload)
    for candidate in proposed(wgmma_rows.FAMILY, workload, H200)[::4]:
        check(workload, options, inputs, outputs_on_gpu(workload, candidate, H200, inputs))
