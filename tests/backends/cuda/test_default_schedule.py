"""The default schedule of CUDA: what dlight's rules make is lowered, or the next rule is asked."""

from __future__ import annotations

import tvm
from tvm import te, tirx, topi

from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.pipeline import register
from subtune.tir.expressions import maximum_over


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
