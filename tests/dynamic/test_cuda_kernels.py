"""CUDA kernels for all instances, computed on the processor at several of them (`dynamic_on_cpu`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends import as_device
from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDA
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.kernel import PLAIN, SINGLE, DynamicKernel, dynamic_kernel
from subtune.dynamic.propose import proposals
from subtune.dynamic.serve import linked
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload
from subtune.measure.guarded import numpy_dtype
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.attention_workloads import attention
from tests.backends.cuda.dynamic_on_cpu import DynamicOnCpu
from tests.backends.workloads import build, layer_norm, softmax

pytestmark = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no CUDA headers, or no C++ compiler")

DEVICE = as_device(CUDA("H100"))
POINTS = (11, 13, 17, 19)
MOST = 200


def dense(rows: int, dtype: str) -> Workload:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return op.nn.gelu(emit(op.add(emit(op.matmul(x, w)), b)))

    return build(body, [(rows, 64)], [(64, 96), (96,)], dtype)


def three_rows(rows: int) -> Workload:
    """Three times as many rows as there are."""
    return build(lambda emit, x: op.nn.relu(emit(op.concat([x, x, x], axis=0))), [(rows, 5)])


def heads(rows: int) -> Workload:
    """Scores of two heads: the rows are its columns as well."""
    return build(
        lambda emit, q, k: op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))), [(2, rows, 16)] * 2, dtype="float16"
    )


KINDS: dict[str, Callable[[int], Workload]] = {
    "float16": lambda rows: dense(rows, "float16"),
    "float32": lambda rows: dense(rows, "float32"),
    "layer norm": lambda rows: layer_norm(rows, 64),
    "softmax": lambda rows: softmax(rows, 64),
    "sum": lambda rows: build(lambda emit, x: emit(op.add(x, relax.const(np.float32(1)))), [(rows, 6)]),
    "three rows": three_rows,
    "heads": heads,
    "attention": lambda rows: attention(2, rows, rows, 64, batch=1, mask="square"),
}


kept = cache(dynamic_kernel)
"""Of a candidate of a workload, for all tests: each takes a second or more."""


@cache
def of_rows(kind: str, most: int = MOST) -> DynamicWorkload:
    made = [KINDS[kind](rows) for rows in POINTS]
    found = dynamic_workload(made, [{"seq": rows} for rows in POINTS], {"seq": most})
    assert not isinstance(found, NotApplicable), found.reason
    return found


def kernel(workload: DynamicWorkload, candidate: Candidate, most: int = MOST) -> Kernel:
    found = kept(workload, candidate, DEVICE)
    assert isinstance(found, DynamicKernel), found.reason
    assert set(found.granules) == {1}, "nothing is computed past the last row"
    return linked(workload, found, (most,), DEVICE)


@cache
def first_of(family: str, workload: DynamicWorkload, most: int = MOST) -> Candidate:
    """The candidate of a family that comes first among those that serve all instances."""
    proposed = (c for c in backends.candidates(workload.at((most,)), DEVICE, 60) if c.family == family)
    return next(c for c in proposed if isinstance(kept(workload, c, DEVICE), DynamicKernel))


def check(workload: DynamicWorkload, made: Kernel, sizes: Sequence[int], folder: Path) -> None:
    emulated = DynamicOnCpu(made, DEVICE, folder)
    rng = np.random.default_rng(0)
    for rows in sizes:
        one = workload.at((rows,))
        inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in one.args if not arg.is_output]
        outputs = [(arg.shape, numpy_dtype(arg.dtype)) for arg in one.args if arg.is_output]
        (got,), (wanted,) = emulated([rows], inputs, outputs), cuda_on_cpu.reference(one, inputs)
        tolerance = 1e-2 if got.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance, err_msg=f"at {rows}")


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("float16", "cuda.mma"),
        ("float16", "cuda.wgmma"),
        ("float32", "cuda.fma"),
        ("layer norm", "cuda.rowwise"),
        ("softmax", "cuda.rowwise"),
    ],
)
def test_one_kernel_is_right_at_every_instance(kind, family, tmp_path):
    workload = of_rows(kind)
    check(workload, kernel(workload, first_of(family, workload)), (1, 63, 65, 128, 200), tmp_path)


def test_a_tile_of_more_rows_than_there_are_stays_in_its_array(tmp_path):
    """And its blocks are as many as rows of either parity take."""
    workload = of_rows("float16")
    direct = Candidate.make("cuda.direct", threads=128, lanes=8, rows=2, share=32, unroll=1)
    check(workload, kernel(workload, direct), (1, 2, 3, 64, 65), tmp_path)


def test_blocks_that_begin_within_rows_are_enough(tmp_path):
    """Six elements a row, four a block: three blocks for two rows."""
    workload = of_rows("sum")
    narrow = Candidate.make("cuda.elementwise", threads=2, lanes=2, unroll=1)
    check(workload, kernel(workload, narrow), (1, 2, 3, 64, 65, 200), tmp_path)


@pytest.mark.parametrize("raster", [1, 2])
def test_a_block_for_each_tile_is_right_at_every_instance(raster, tmp_path):
    """In bands of `raster` rows of tiles, of which the last has fewer."""
    workload = of_rows("float16")
    few = (Problem(workload.at((63,)), DEVICE.model, DEVICE.numerics), first_of("cuda.wgmma", workload))
    single, persistent = DEVICE.backend.for_many_shapes(*few)
    assert [(one.get("single"), one.get("few")) for one in (single, persistent)] == [(True, True), (None, True)]
    many = Problem(workload.at((1 << 16,)), DEVICE.model, DEVICE.numerics)
    (open_,) = DEVICE.backend.for_many_shapes(many, few[1])
    assert dict(open_.knobs) == {**dict(few[1].knobs), "fitted": True}
    in_bands = Candidate.make(single.family, **{**dict(single.knobs), "raster": raster})
    check(workload, kernel(workload, in_bands), (1, 63, 65, 128, 200), tmp_path)


def test_there_are_no_more_blocks_than_tiles(tmp_path):
    """Six for every 64 rows, and as many as there are multiprocessors at most."""
    workload = of_rows("float16", 1 << 11)
    persistent = Candidate.make("cuda.wgmma", **{**dict(first_of("cuda.wgmma", workload).knobs), "fitted": True})
    made = kernel(workload, persistent, 1 << 11)
    assert "T.min(" in next(line for line in made.func.script().splitlines() if "cta_id(" in line)
    check(workload, made, (1, 63, 65, 200, 1500), tmp_path)


def test_every_implementation_is_tried_at_every_instance():
    """Of one all kernels may fail: what is left for all instances is another's."""
    proposed = proposals(of_rows("float16"), [(1,), (7,), (31,), (128,), (512,)], DEVICE, 8)
    families = {one.family for one in proposed}
    assert {"cuda.mma", "cuda.wgmma"} < families
    for family in families:
        origins = [at for one, at in proposed.items() if one.family == family]
        assert sum(at == () for at in origins) >= min(2, len(origins)), family


def test_rows_that_a_tile_lacks_are_not_copied(tmp_path):
    """Boxes, and the bytes that are waited for, are of as many rows as there are, up to a tile."""
    workload = of_rows("float16")
    problem = Problem(workload.at((7,)), DEVICE.model, DEVICE.numerics)
    few = DEVICE.backend.for_many_shapes(problem, first_of("cuda.wgmma", workload))[-1]
    made = kernel(workload, few)
    assert "T.min(64, " in (text := made.func.script()) or "T.min(128, " in text
    check(workload, made, (1, 7, 63, 64, 65, 128, 200), tmp_path)


@pytest.mark.parametrize("family", ["cuda.attention", "cuda.attention_mma"])
def test_attention_with_a_mask_for_every_row_and_key(family, tmp_path):
    """Which is asked for before the scores are there; beyond the last key there is none."""
    workload = of_rows("attention")
    candidate = first_of(family, workload, 40)
    problem = Problem(workload.at((40,)), DEVICE.model, DEVICE.numerics)
    shared = DEVICE.backend.for_many_shapes(problem, candidate)[-1]
    assert shared.get("across")
    check(workload, kernel(workload, shared), (1, 7, 31, 64, 65, 200), tmp_path)


@pytest.mark.parametrize(("kind", "candidate"), [("float32", PLAIN), ("three rows", SINGLE)])
def test_what_no_family_serves_is_computed_plainly(kind, candidate, tmp_path):
    workload = of_rows(kind)
    check(workload, kernel(workload, candidate), (1, 7, 33), tmp_path)


def test_elementwise(tmp_path):
    workload = of_rows("sum")
    candidate = Candidate.make("cuda.elementwise", lanes=2, threads=64, unroll=1)
    check(workload, kernel(workload, candidate), (1, 2, 63, 200), tmp_path)


def test_rows_that_are_columns_as_well(tmp_path):
    workload = of_rows("heads", 40)
    check(workload, kernel(workload, first_of("cuda.mma", workload, 40), 40), (1, 8, 17, 40), tmp_path)
