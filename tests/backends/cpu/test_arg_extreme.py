"""ArgMax and ArgMin along rows: two reductions of one value each, the first of equals, NaN the most extreme."""

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
from subtune.backends.cpu.loops.arg_extreme import in_two
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import DEFAULT
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.pipeline import prepare
from tests.backends.workloads import build
from tests.frontends.onnx.test_ops import floats, node_model

EXPECTED: dict[str, Callable[..., Any]] = {"ArgMax": np.argmax, "ArgMin": np.argmin}


def imported(kind: str, shape: tuple[int, ...]) -> Workload:
    model, _ = node_model(kind, [floats(*shape)], 17, axis=-1, keepdims=0)
    (subgraph,) = prepare(model).subgraphs
    return subgraph.workload


def compute(workload: Workload, kernel: Kernel, x: np.ndarray, device: CPUModel) -> np.ndarray:
    result = tvm.runtime.tensor(np.full(workload.args[-1].shape, -7, workload.args[-1].dtype))
    func = kernel.func.with_attr("global_symbol", "main")
    tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)["main"](tvm.runtime.tensor(x), result)
    return result.numpy()


def special(shape: tuple[int, ...]) -> np.ndarray:
    """Many equals; both zeros, infinities and NaN."""
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, shape).astype("float32")
    x[0] = np.nan
    x[1] = np.where(rng.random(shape[1:]) < 0.5, np.float32(0.0), np.float32(-0.0))
    x[2, ..., shape[-1] // 2 :] = np.nan
    x[3] = -np.inf
    x[4] = np.inf
    return x


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("shape", [(7, 1090), (6, 64), (5, 37), (5, 3, 129)])
@pytest.mark.grid
def test_candidates_are_right(kind: str, shape: tuple[int, ...], device: CPUModel) -> None:
    workload = imported(kind, shape)
    assert in_two(workload.func) is not None
    x = special(shape)
    found = [c for c in backends.candidates(workload, device, topk=50) if c.family == "rowwise"]
    kernels = [backends.schedule(workload, c, device) for c in found if not c.get("ahead")]
    assert kernels
    for kernel in kernels:
        assert not isinstance(kernel, NotApplicable), kernel.reason
        np.testing.assert_array_equal(compute(workload, kernel, x, device), EXPECTED[kind](x, axis=-1))


@pytest.mark.parametrize("family", ["default", "rowwise"])
def test_halves_are_compared_as_what_they_are(family: str, device: CPUModel) -> None:
    """What a reduction of two values names is bfloat16 made explicit as well: TVM's own reading of it was wrong."""
    workload = build(lambda emit, x: op.argmax(emit(op.astype(x, "float32")), axis=-1), [(6, 74)], dtype="bfloat16")
    found = [DEFAULT, *backends.candidates(workload, device, topk=50)]
    kernels = [backends.schedule(workload, c, device) for c in found if c.family == family and not c.get("ahead")]
    x = np.random.default_rng(0).standard_normal((6, 74)).astype(ml_dtypes.bfloat16)
    given = tvm.runtime.empty(x.shape, "bfloat16")
    given.copyfrom(x)
    for kernel in kernels:
        assert isinstance(kernel, Kernel), kernel.reason
        assert "bfloat16" not in kernel.func.script().replace('"bfloat16")', "", 1)
        result = tvm.runtime.tensor(np.full(workload.args[-1].shape, -7, workload.args[-1].dtype))
        tvm.compile(kernel.func, target=device.target(), tir_pipeline=PIPELINE)["main"](given, result)
        np.testing.assert_array_equal(result.numpy(), x.astype("float32").argmax(-1))


def test_rows_that_are_made_first_are_not_asked_for_ahead(device: CPUModel) -> None:
    workload = imported("ArgMax", (4096, 1090))
    ahead = [c for c in backends.candidates(workload, device, topk=50) if c.family == "rowwise" and c.get("ahead")]
    assert ahead
    assert isinstance(backends.schedule(workload, ahead[0], device), NotApplicable)


def test_floats_and_other_reductions_stay_one() -> None:
    """A NaN is equal to nothing: it would be nowhere."""
    assert in_two(build(lambda emit, x: op.argmax(x, axis=-1), [(4, 40)]).func) is None
    assert in_two(build(lambda emit, x: op.max(x, axis=-1), [(4, 40)]).func) is None
    assert in_two(build(lambda emit, x: op.nn.softmax(x), [(4, 40)]).func) is None
