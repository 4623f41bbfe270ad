"""erf on a GPU is a polynomial: as exact as CUDA's own, and what kernels call."""

from __future__ import annotations

import math

import numpy as np
import tvm
from tvm import te, tirx

from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.erf import COEFFICIENTS
from subtune.backends.cuda.lowering.pipeline import register


def test_the_polynomial_is_erf() -> None:
    x = np.linspace(-6, 6, 100001).astype(np.float32)
    y = np.clip(x, np.float32(-3.8), np.float32(3.8))
    t = (y.astype(np.float64) * y * (2 / 3.8**2) - 1).astype(np.float32)
    p = np.full_like(t, COEFFICIENTS[-1])
    for c in COEFFICIENTS[-2::-1]:
        p = (p.astype(np.float64) * t + np.float32(c)).astype(np.float32)  # rounded once, as by one instruction
    want = np.array([math.erf(v) for v in x.tolist()])
    error = np.abs(p * y - want)
    assert error.max() < 2e-7
    small = (np.abs(x) < 0.5) & (x != 0)
    assert (error[small] / np.abs(want[small])).max() < 5e-7


def test_kernels_call_it() -> None:
    x = te.placeholder((1024,), "float32", "x")
    y = te.compute((1024,), lambda i: tirx.erf(x[i]), "y")
    target = CUDA("H200").target()
    mod = default_schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}), target)
    with target:
        text = tvm.compile(mod, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    assert "= subtune_erf(" in text
    assert "erff(" not in text
