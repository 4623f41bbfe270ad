"""What the results of candidates are compared with: long sums, and sums that cancel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.relax import op
from tvm.s_tir import SBlockRealize

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.timing.condition import nudged, scales_of, step_of
from subtune.core.candidate import DEFAULT
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends.workloads import build


def total_of(values: np.ndarray, device: CPUModel) -> float:
    """By the default schedule."""
    workload = build(lambda emit, x: op.sum(x), [values.shape])
    kernel = backends.schedule(workload, DEFAULT, device)
    assert isinstance(kernel, Kernel)
    out = tvm.runtime.tensor(np.zeros((), "float32"))
    func = kernel.func.with_attr("global_symbol", "main")
    tvm.compile(func, target=device.target())["main"](tvm.runtime.tensor(values), out)
    return float(out.numpy())


def test_long_sums_are_right(device: CPUModel) -> None:
    rng = np.random.default_rng(0)
    for shape in ((1500, 1000), (1 << 20,), (1, 262144)):
        values = rng.random(shape, np.float32) + np.float32(0.1)
        exact = values.astype(np.float64).sum()
        assert abs(total_of(values, device) - exact) < 2e-6 * exact


def test_long_sums_of_rows_are_right(run: Callable[[Workload, Kernel | None], np.ndarray], device: CPUModel) -> None:
    workload = build(lambda emit, x: op.mean(x, axis=[1, 2]), [(3, 260, 260)])
    kernel = backends.schedule(workload, DEFAULT, device)
    assert isinstance(kernel, Kernel)
    np.testing.assert_allclose(run(workload, kernel), run(workload, None), atol=2e-6)


def test_the_columns_of_a_long_product_are_vectors(device: CPUModel) -> None:
    """Along its parts, every element would be another row of the weights: such a product took seconds."""
    workload = build(lambda emit, x, w: op.matmul(x, w), [(16, 131072), (131072, 64)])
    kernel = backends.schedule(workload, DEFAULT, device)
    assert isinstance(kernel, Kernel)
    vectors: list[tirx.For] = []

    def visit(loop: tirx.For) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            vectors.append(loop)

    tvm_ffi.structural_walk(kernel.func, (tirx.For, visit))
    assert len(vectors) == 4, "the parts, their sum, and what both begin with"
    for loop in vectors:
        (realize,) = nodes(loop, SBlockRealize)
        (store,) = nodes(loop, tirx.BufferStore)
        axes = [iter_var.var for iter_var in realize.block.iter_vars]
        column = next(i for i, axis in enumerate(axes) if axis.same_as(store.indices[-1]))
        assert any(var.same_as(loop.loop_var) for var in nodes(realize.iter_values[column], tirx.Var))


def nodes(tree: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(tree, (kind, found.append))
    return found


def test_a_sum_that_cancels_is_relative_to_what_it_sums() -> None:
    values = np.concatenate([np.full(50_000, 1e6), np.full(50_000, -1e6)]).astype(np.float32)
    near = nudged([values])
    assert np.allclose(near[0], values, rtol=2 * step_of([values]))
    results = [np.array([array.astype(np.float64).sum()]) for array in (near[0], values)]
    (scale,) = scales_of(results[:1], results[1:], step_of([values]))
    assert 1e7 < scale < 1e10, "its terms' root of the sum of squares is 3e8"


def test_a_sum_that_does_not_cancel_is_relative_to_itself() -> None:
    values = np.linspace(1, 2, 1000, dtype=np.float32)
    results = [np.array([array.astype(np.float64).sum()]) for array in (nudged([values])[0], values)]
    (scale,) = scales_of(results[:1], results[1:], step_of([values]))
    assert scale < float(results[1][0])


def test_whole_numbers_are_not_nudged() -> None:
    whole = np.arange(5)
    assert nudged([whole])[0] is whole
    assert step_of([whole]) == 0.0
