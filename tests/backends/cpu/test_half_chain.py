"""Attention in half precision on a CPU without instructions for it: rows are widened once, and rounded once."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.chain import Chain
from subtune.patterns.recognise import recognise
from tests.backends.cpu.chains import build_one

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
ULP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
HEADS, D = 2, 16


def wide(emit: Any, x: Any) -> Any:
    return emit(op.astype(x, "float32"))


def attention(dtype: str, rows: int, keys: int, turned: bool = True) -> Workload:
    """Queries, keys, values, and a mask of keys; `turned`: keys lie as values do, their elements side by side."""

    def body(emit: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        q, k, v, mask = (wide(emit, x) for x in (q, k, v, mask))
        k = emit(op.permute_dims(k, [0, 2, 1])) if turned else k
        scores = emit(op.multiply(emit(op.matmul(q, k)), relax.const(0.25)))
        weights = emit(op.nn.softmax(emit(op.add(scores, mask)), axis=-1))
        return op.astype(emit(op.matmul(weights, v)), dtype)

    shapes = [(HEADS, rows, D), (HEADS, keys, D) if turned else (HEADS, D, keys), (HEADS, keys, D), (1, 1, keys)]
    return build_one(body, shapes, dtype=dtype)


def products(dtype: str, rows: int, columns: int) -> Workload:
    """a @ b^T for several a and b."""

    def body(emit: Any, a: Any, b: Any) -> Any:
        return op.matmul(wide(emit, a), emit(op.permute_dims(wide(emit, b), [0, 2, 1])))

    return build_one(body, [(HEADS, rows, D), (HEADS, columns, D)], dtype=dtype)


def inputs_of(workload: Workload) -> list[Any]:
    rng = np.random.default_rng(3)
    given = [arg for arg in workload.args if not arg.is_output]
    return [rng.standard_normal(arg.shape).astype(DTYPES[arg.dtype]) for arg in given]


def computed(workload: Workload, candidate: Candidate, inputs: list[Any], device: CPUModel) -> np.ndarray:
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel), f"{candidate}: {kernel}"
    out = workload.args[-1]
    result = np.full(out.shape, np.nan, np.float32).astype(DTYPES.get(out.dtype, np.float32))
    tensors = [tvm.runtime.tensor(array) for array in (*inputs, result)]
    func = kernel.func.with_attr("global_symbol", "main")
    tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE)["main"](*tensors)
    return tensors[-1].numpy().astype(float)


def reference(q: Any, k: Any, v: Any, mask: Any) -> np.ndarray:
    scores = q @ k * 0.25 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ v


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "keys"), [(32, 32), (19, 37)])
@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.grid
def test_attention_in_halves_is_one_kernel_and_right(
    dtype: str, rows: int, keys: int, turned: bool, device: CPUModel
) -> None:
    workload = attention(dtype, rows, keys, turned)
    assert isinstance(recognise(workload), Chain)
    inputs = inputs_of(workload)
    q, k, v, mask = (x.astype(float) for x in inputs)
    want = reference(q, k.transpose(0, 2, 1) if turned else k, v, mask)
    proposed = [c for c in backends.candidates(workload, device, topk=20) if c.family == "chain"]
    assert proposed
    for candidate in (proposed[0], proposed[-1]):
        got = computed(workload, candidate, inputs, device)
        assert np.abs(got - want).max() <= ULP[dtype] * np.abs(want).max(), str(candidate)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_rows_of_halves_are_tuned(dtype: str, device: CPUModel) -> None:
    """b, whose rows are turned while they are packed, keeps its type until it is multiplied.

    Processors that multiply bfloat16 themselves have a family for it.
    """
    workload = products(dtype, 24, 32)
    inputs = inputs_of(workload)
    a, b = (x.astype(float) for x in inputs)
    proposed = [c for c in backends.candidates(workload, device, topk=12) if c.family.startswith("contraction")]
    tried = [c for c in proposed if not isinstance(backends.schedule(workload, c, device), NotApplicable)]
    assert tried
    for candidate in (tried[0], tried[-1]):
        got = computed(workload, candidate, inputs, device)
        assert np.abs(got - a @ b.transpose(0, 2, 1)).max() <= 1e-5 * np.abs(a @ b.transpose(0, 2, 1)).max()
