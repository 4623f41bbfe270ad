"""Sorts and running sums become sums over pairs that compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune.passes.counted import MOST_ELEMENTS, counted
from subtune.passes.exprs import op_name
from tests.passes.test_outline import module, run

ORDERS = frozenset(("relax.topk", "relax.sort", "relax.argsort", "relax.cumsum"))
X = np.array([[3, 1, 3, 2, 5, -4, 1], [0, 0, 0, 7, -7, 7, 1]], "int32")


def operators(mod: tvm.IRModule) -> set[str]:
    return {op_name(binding.value) for block in mod["main"].body.blocks for binding in block.bindings}


def check(build: Callable[[Any, Any], Any], x: np.ndarray, *expected: np.ndarray) -> None:
    mod = counted(module(build, (x.shape, str(x.dtype))))
    assert not operators(mod) & ORDERS
    for got, wanted in zip(run(mod, [x]), expected, strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_running_sums(axis: int, dtype: str) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, 5, 2)).astype(dtype)
    check(lambda emit, x: emit(op.cumsum(x, axis=axis)), x, np.cumsum(x, axis))


def test_a_running_sum_of_what_is_not_finite() -> None:
    x = np.array([1, 2, np.inf, 3], "float32")
    check(lambda emit, x: emit(op.cumsum(x, axis=0)), x, np.cumsum(x))


def test_a_running_sum_in_a_wider_type() -> None:
    x = np.full(300, 100, "int32")
    check(lambda emit, x: emit(op.cumsum(x, axis=0, dtype="int64")), x, np.cumsum(x, dtype="int64"))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("largest", [True, False])
def test_the_largest_and_their_places(axis: int, largest: bool) -> None:
    order = np.argsort(-X if largest else X, axis, kind="stable").take(range(2), axis)

    def build(emit: Any, x: Any) -> Any:
        both = emit(op.topk(x, k=2, axis=axis, ret_type="both", largest=largest, dtype="int64"))
        return relax.Tuple([emit(relax.TupleGetItem(both, 0)), emit(relax.TupleGetItem(both, 1))])

    check(build, X, np.take_along_axis(X, order, axis), order)


@pytest.mark.parametrize(("kind", "dtype"), [("indices", "int32"), ("values", "int32")])
def test_one_result_of_the_largest(kind: str, dtype: str) -> None:
    order = np.argsort(-X, 1, kind="stable")[:, :3]
    expected = order.astype(dtype) if kind == "indices" else np.take_along_axis(X, order, 1)
    check(lambda emit, x: emit(op.topk(x, k=3, axis=-1, ret_type=kind, dtype=dtype)), X, expected)


@pytest.mark.parametrize("descending", [True, False])
def test_sorts(descending: bool) -> None:
    order = np.argsort(-X if descending else X, 1, kind="stable")
    check(lambda emit, x: emit(op.argsort(x, axis=1, descending=descending, dtype="int32")), X, order.astype("int32"))
    expected = np.take_along_axis(X, order, 1)
    check(lambda emit, x: emit(op.sort(x, axis=-1, descending=descending)), X, expected)


@pytest.mark.parametrize(
    "build", [lambda emit, x: emit(op.cumsum(x, axis=1)), lambda emit, x: emit(op.sort(x, axis=1))], ids=["sum", "sort"]
)
def test_long_rows_stay(build: Callable[[Any, Any], Any]) -> None:
    mod = counted(module(build, ((1, MOST_ELEMENTS + 1), "float32")))
    assert operators(mod) & ORDERS
