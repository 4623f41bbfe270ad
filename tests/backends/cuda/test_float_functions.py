"""Float32 keeps CUDA's own functions; what stores halves takes the hardware's, unless told to be exact."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.backends.cuda.building.compiler import collected, compile_source
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.lowering.default_schedule import default_schedule
from subtune.backends.cuda.lowering.float_functions import every_function_exact
from subtune.backends.cuda.lowering.pipeline import register

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "exp": (tirx.exp, "expf(", "__expf("),
    "log": (tirx.log, "logf(", "__logf("),
    "tanh": (tirx.tanh, "tanhf(", "subtune_tanh("),
    "sigmoid": (tirx.sigmoid, "expf(", "subtune_sigmoid("),
    "quotient": (lambda x: x / (x + 1.0), "/ (", "__fdividef("),
    "power": (lambda x: tirx.power(x, x), "powf(", "__powf("),
}
_KERNEL = """
static __device__ float short_tanh(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
extern "C" __global__ void main_kernel(float* x) { x[threadIdx.x] = FUNCTION(x[threadIdx.x]); }
"""


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_kernels_call_what_their_results_need(name: str, dtype: str) -> None:
    function, own, short = FUNCTIONS[name]
    text = kernel(function, dtype)
    assert is_in(text, own) == (dtype == "float32")
    assert is_in(text, short) == (dtype != "float32")


def test_exact_kernels_of_halves_call_cudas_own() -> None:
    function, own, short = FUNCTIONS["tanh"]
    with every_function_exact(True):
        text = kernel(function, "float16")
    assert is_in(text, own)
    assert not is_in(text, short)


@pytest.mark.parametrize("exactly", [False, True])
def test_the_compiler_replaces_no_function(exactly: bool) -> None:
    target = CUDA("H200").target()
    with collected(exactly):
        own, short = (compile_source(_KERNEL.replace("FUNCTION", f), target) for f in ("tanhf", "short_tanh"))
    assert len(own) > len(short)


def test_the_short_tanh_keeps_its_digits_near_nothing() -> None:
    x = np.linspace(-9, 9, 100001).astype(np.float32)
    t = x * x
    series = x * t * (t * (t * np.float32(-0.05396825) + np.float32(0.13333333)) - np.float32(0.33333333)) + x
    got = np.where(t < 0.0625, series, 1 - 2 / (np.exp(2 * x) + 1))
    want = np.tanh(x.astype(np.float64))
    assert (np.abs(got - want) / np.maximum(np.abs(want), 1e-30)).max() < 2e-6


def is_in(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}", text) is not None


def kernel(function: Callable[[Any], Any], dtype: str) -> str:
    """What stores `function` of float32 as `dtype`, in CUDA C++, without the definitions above it."""
    x = te.placeholder((1024,), "float32", "x")
    y = te.compute((1024,), lambda i: function(x[i]).astype(dtype), "y")
    target = CUDA("H200").target()
    mod = default_schedule(tvm.IRModule({"main": te.create_prim_func([x, y])}), target)
    with target:
        text = tvm.compile(mod, target=target, tir_pipeline=register()).mod.imports[0].inspect_source()
    return str(text).rpartition('extern "C"')[2]
