"""The default schedule of functions of several products: every stage a kernel, as right as the loops that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from subtune.backends.base import NoKnobs, Problem
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.default.schedule import schedule
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.pipeline import register
from subtune.backends.cuda.lowering.staged import Staged
from tests.backends.cuda import cuda_on_cpu
from tests.backends.cuda.attention_workloads import attention
from tests.backends.cuda.gemm_workloads import product

H200 = CUDA("H200")
CASES: dict[str, dict[str, Any]] = {
    "ragged": {"heads": 3, "rows": 67, "keys": 93, "dim": 40},
    "causal, heads last": {"heads": 2, "rows": 70, "keys": 70, "dim": 24, "mask": "causal", "heads_last": True},
    "added mask, shared keys": {"heads": 4, "rows": 18, "keys": 33, "dim": 16, "mask": "added", "shared": 2},
    "one row of many heads": {"heads": 32, "rows": 1, "keys": 93, "dim": 24, "shared": 4},
}


@pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no CUDA headers, or no C++ compiler")
@pytest.mark.parametrize("case", CASES)
def test_every_stage_is_right(case: str, tmp_path: Path) -> None:
    workload = attention(batch=1, is_wide=True, **CASES[case])
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(arg.shape).astype(arg.dtype) for arg in workload.args if not arg.is_output]
    kernel = schedule(Problem(workload, H200), NoKnobs())
    (got,) = cuda_on_cpu.run(kernel, inputs, workload, H200, tmp_path)
    (want,) = cuda_on_cpu.reference(workload, inputs)
    assert np.linalg.norm(got.astype(np.float64) - want) < 2e-3 * np.linalg.norm(want)


def test_exponentials_are_computed_once_for_a_tile_of_columns() -> None:
    func = Staged().apply(attention(2, 64, 64, 64).func, H200.target(), False).mod["main"]
    assert func.script().count('scope="shared"') == 4  # the operands of two products
    product = func.script().rpartition('T.sblock("matmul1_update")')[2].partition("T.sblock(")[0]
    assert "T.exp" not in product


def test_one_product_is_for_the_next_rule() -> None:
    assert Staged().apply(product(64, 64, 64).func, H200.target(), False) is None


def test_heads_of_one_row_are_no_rows_of_a_tile() -> None:
    """Each has keys of its own: a tile of them would need as many in shared memory."""
    func = Staged().apply(attention(32, 1, 4096, 64, batch=1).func, H200.target(), False).mod["main"]
    assert 'scope="shared"' not in func.script()


def test_scores_of_more_than_31_bits_build() -> None:
    workload = attention(32, 8192, 8192, 64, mask="causal")
    mod = default_schedule(tvm.IRModule({"main": workload.func}), H200.target())
    with H200.target():
        text = tvm.compile(mod, target=H200.target(), tir_pipeline=register()).mod.imports[0].inspect_source()
    assert text.count("__global__") >= 5
