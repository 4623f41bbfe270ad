"""Halves are turned as their bits: right where they are copied, cast, or computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends.workloads import build

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrix": ((33, 47), (1, 0)),
    "to channels last": ((2, 20, 5, 7), (0, 2, 3, 1)),
    "three channels to the end": ((2, 3, 5, 7), (0, 2, 3, 1)),
    "three channels to the front": ((2, 5, 7, 3), (0, 3, 1, 2)),
    "large": ((260, 257), (1, 0)),
}
BODIES: dict[str, Callable[..., Any]] = {
    "copied": lambda emit, x, order: op.permute_dims(x, order),
    "widened": lambda emit, x, order: op.permute_dims(emit(op.astype(x, "float32")), order),
    "computed": lambda emit, x, order: op.astype(
        emit(op.nn.relu(emit(op.permute_dims(emit(op.astype(x, "float32")), order)))), str(x.ty.dtype)
    ),
}
KNOBS = [{"inner": "a"}, {"inner": "b"}, {"rows": 64}, {"rows": 64, "columns": 128}]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.grid
def test_halves_are_turned(shape: str, body: str, dtype: str, device: CPUModel) -> None:
    extents, order = SHAPES[shape]
    workload = build(lambda emit, x: BODIES[body](emit, x, order), [extents], dtype=dtype)
    made = [backends.schedule(workload, Candidate.make("transpose", **knobs), device) for knobs in KNOBS]
    kernels = [kernel for kernel in made if isinstance(kernel, Kernel)]
    assert kernels or (body != "copied" and min(extents) < device.lanes())
    x = np.random.default_rng(0).standard_normal(extents).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    expected = x.transpose(order).astype("float32")
    for kernel in kernels:
        got = compute(workload, kernel, x, device).astype("float32")
        np.testing.assert_array_equal(got, np.maximum(expected, 0) if body == "computed" else expected)


def compute(workload: Workload, kernel: Kernel, x: np.ndarray, device: CPUModel) -> np.ndarray:
    dtypes = {"bfloat16": ml_dtypes.bfloat16, "float16": "float16", "float32": "float32"}
    (out,) = (arg for arg in workload.args if arg.is_output)
    given, result = tvm.runtime.empty(x.shape, str(x.dtype)), tvm.runtime.empty(out.shape, out.dtype)
    given.copyfrom(x)
    result.copyfrom(np.full(out.shape, np.nan, dtypes[out.dtype]))
    tvm.compile(kernel.func, target=device.target(), tir_pipeline=PIPELINE)["main"](given, result)
    return result.numpy().view(dtypes[out.dtype])
