"""erf on a GPU: a polynomial behind halves, CUDA's own where more is stored."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.erf import COEFFICIENTS, EDGE, NAME, source
from subtune.backends.cuda.lowering.pipeline import register


def test_the_polynomial_is_erf() -> None:
    x = np.linspace(-6, 6, 100001).astype(np.float32)
    got = evaluated(x)
    want = np.array([math.erf(v) for v in x.tolist()])
    error = np.abs(got - want)
    assert error.max() < 2.3e-5
    small = (np.abs(x) < 0.5) & (x != 0)
    assert (error[small] / np.abs(want[small])).max() < 1e-4


def test_gelu_of_a_large_number_is_the_number_or_nothing() -> None:
    assert evaluated(np.array([-6e4, -100.0, 100.0, 6e4], np.float32)).tolist() == [-1, -1, 1, 1]


def test_what_is_one_is_not_made_one_with_a_sum() -> None:
    assert "return __fmul_rn(p, y);" in source()


def evaluated(x: np.ndarray) -> np.ndarray:
    y = np.clip(x, np.float32(-EDGE), np.float32(EDGE))
    t = ((y * y).astype(np.float64) * np.float32(2 / EDGE**2) - 1).astype(np.float32)
    p = np.full_like(t, COEFFICIENTS[-1])
    for c in COEFFICIENTS[-2::-1]:
        p = (p.astype(np.float64) * t + np.float32(c)).astype(np.float32)  # rounded once, as by one instruction
    return p * y


@pytest.mark.parametrize(("dtype", "name"), [("float32", "erff"), ("float16", NAME), ("bfloat16", NAME)])
def test_kernels_call_what_their_results_need(dtype: str, name: str) -> None:
    x = te.placeholder((1024,), "float32", "x")
    y = te.compute((1024,), lambda i: tirx.erf(x[i]).astype(dtype), "y")
    target = CUDA("H200").target()
    mod = default_schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}), target)
    with target:
        text = tvm.compile(mod, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    assert f"{name}(x_ptr" in text or f"{name}((" in text
    assert name == "erff" or "erff(" not in text
