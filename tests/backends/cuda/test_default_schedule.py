"""The default schedule of CUDA: what dlight's rules make is lowered, or the next rule is asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import te, tirx, topi

from subtune import backends
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.families.reference.schedule import in_float64
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.pipeline import register
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from subtune.tir.expressions import maximum_over
from tests.backends.cuda.attention_workloads import attention
from tests.backends.cuda.cuda_on_cpu import reference, run, toolkit


def test_a_short_window_is_reduced_by_one_thread_from_minus_infinity_on() -> None:
    """A maximum of nothing but minus infinity is that: what a candidate's function of it is compared with."""
    x = te.placeholder((8, 99, 99, 48), "float32", "x")
    y, z = te.reduce_axis((0, 2), "y"), te.reduce_axis((0, 2), "z")
    pool = te.compute((8, 49, 49, 48), lambda n, h, w, c: maximum_over(x[n, h * 2 + y, w * 2 + z, c], [y, z]), "pool")
    target = CUDA("H200").target()
    mod = default_schedule(tvm.IRModule({"main": te.create_prim_func([x, pool])}), target)
    with target:
        text = tvm.compile(mod, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    assert "shfl" not in text
    assert "-CUDART_INF_F" in text


def test_a_convolution_with_two_outputs_builds() -> None:
    """Dlight's rule for products uses a buffer of such a function outside of where it is allocated."""
    x, w = te.placeholder((20, 127, 127, 16), "float16", "x"), te.placeholder((1, 1, 16, 211), "float16", "w")
    sums = topi.nn.conv2d_nhwc(x, w, 1, 0, 1, "float32")
    half = topi.cast(sums, "float16")
    outputs = [half * tirx.const(0.5, "float16"), half * half]
    target = CUDA("H200").target()
    mod = default_schedule(tvm.IRModule({"main": te.create_prim_func([x, w, *outputs])}), target)
    with target:
        text = tvm.compile(mod, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    assert "__global__" in text


@pytest.mark.parametrize(("dtype", "is_wide"), [("float16", False), ("float16", True), ("bfloat16", False)])
def test_the_reference_of_attention_computes_an_exponential_once(dtype: str, is_wide: bool, tmp_path: Path) -> None:
    """And not once for every column of the result: of 8192 tokens that takes all of a short budget."""
    workload = attention(2, 32, 48, 16, batch=1, mask="causal", is_wide=is_wide, dtype=dtype)
    kernel = backends.schedule(workload, Candidate("cuda.reference"), CUDA("H100"))
    assert isinstance(kernel, Kernel)
    assert 'scope="shared"' in kernel.func.script(), (
        "its products are in tiles, which are computed while they are copied"
    )
    if not toolkit():
        pytest.skip("no CUDA headers or C++ compiler to run it")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(arg.shape) for arg in workload.args if not arg.is_output]
    (got,) = run(kernel, inputs, Workload.of(in_float64(workload), 1), CUDA("H100"), tmp_path)
    (right,) = reference(workload, inputs)
    np.testing.assert_allclose(got, right, rtol=1e-9, atol=1e-12)
