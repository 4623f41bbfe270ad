"""Sorts, running sums and scatters on a GPU: what their kernels compute, and that calls become calls of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.ir import IRModule
from tvm.tirx import PrimFunc

from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.operators import own_operators
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends.cuda import cuda_on_cpu

H200 = CUDA("H200")
needs_toolkit = pytest.mark.skipif(not cuda_on_cpu.toolkit(), reason="no headers of CUDA or no C++ compiler")


def module(op: Any, *shapes: tuple[tuple[int, ...], str]) -> IRModule:
    """`main` that calls one operator."""
    bb = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(shape, dtype)) for i, (shape, dtype) in enumerate(shapes)]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(op(*params))
        bb.emit_func_output(out)
    return bb.get()


def own(mod: IRModule) -> list[PrimFunc]:
    """The functions that take the place of operators."""
    return [func for func in own_operators(mod, H200).functions.values() if isinstance(func, PrimFunc)]


def run(op: Any, arrays: list[np.ndarray], folder: Path) -> list[np.ndarray]:
    (func,) = own(module(op, *((array.shape, str(array.dtype)) for array in arrays)))
    workload = Workload.of(func, len(func.params) - len(arrays))
    shaped = [array.reshape([int(d) for d in p.shape]) for array, p in zip(arrays, func.params, strict=False)]
    return cuda_on_cpu.run(Kernel(workload.func), shaped, workload, H200, folder)


@needs_toolkit
@pytest.mark.parametrize(
    ("shape", "axis", "count", "dtype"),
    [((3, 13), 1, 5, "float32"), ((1, 9000), 1, 20, "float16"), ((300, 2), 0, 300, "int32")],
    ids=["a warp", "parts of a row", "whole columns"],
)
def test_the_first_of_rows(shape: tuple[int, ...], axis: int, count: int, dtype: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-40, 40, shape).astype(dtype)  # many are equal: the foremost come first
    places = np.argsort(-x.astype("float64"), axis=axis, kind="stable").take(range(count), axis)
    found = run(lambda x: relax.op.topk(x, count, axis, "both", True, "int64"), [x], tmp_path)
    np.testing.assert_array_equal(found[0].reshape(places.shape), np.take_along_axis(x, places, axis))
    np.testing.assert_array_equal(found[1].reshape(places.shape), places)


@needs_toolkit
@pytest.mark.parametrize(("rows", "length", "count"), [(3, 300, 40), (2, 5000, 300)])
def test_halves_of_all_kinds_in_order(rows: int, length: int, count: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((rows, length)) * 10.0 ** rng.integers(-7, 5, (rows, length))).astype("float16")
    x[:, ::17], x[:, 5::50], x[:, 7::40], x[:, 9::90], x[:, 11::80] = 0.0, -0.0, np.inf, -np.inf, np.nan
    order = np.where(np.isnan(x), np.inf, x.astype("float64").clip(-1e6, 1e6))  # NaN comes before infinity
    places = np.argsort(-order, axis=1, kind="stable")[:, :count]
    found = run(lambda x: relax.op.topk(x, count, 1, "both", True, "int64"), [x], tmp_path)
    np.testing.assert_array_equal(found[1].reshape(places.shape), places)
    np.testing.assert_array_equal(found[0].reshape(places.shape), np.take_along_axis(x, places, 1))


@needs_toolkit
@pytest.mark.parametrize(("shape", "axis", "exclusive"), [((1, 5000), 1, False), ((40, 7), 0, True)])
def test_running_sums(shape: tuple[int, ...], axis: int, exclusive: bool, tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(-9, 9, shape).astype("float32")
    (found,) = run(lambda x: relax.op.cumsum(x, axis, exclusive=exclusive), [x], tmp_path)
    np.testing.assert_array_equal(found.reshape(shape), np.cumsum(x, axis) - (x if exclusive else 0))


@needs_toolkit
def test_updates_that_meet_are_all_added(tmp_path: Path) -> None:
    x, new = np.ones((4, 6), "float32"), np.ones((4, 9), "float32")
    at = np.full((4, 9), 2, "int64")
    (found,) = run(lambda x, at, new: relax.op.scatter_elements(x, at, new, 1, "add"), [x, at, new], tmp_path)
    np.testing.assert_array_equal(found[:, 2], 10)
    assert found.sum() == 4 * (5 + 10)


@needs_toolkit
def test_rows_that_are_updated(tmp_path: Path) -> None:
    x, at, new = np.zeros((5, 3), "float16"), np.array([[3], [1]]), np.arange(6, dtype="float16").reshape(2, 3)
    (found,) = run(lambda x, at, new: relax.op.scatter_nd(x, at, new, "update"), [x, at, new], tmp_path)
    np.testing.assert_array_equal(found, [[0, 0, 0], [3, 4, 5], [0, 0, 0], [0, 1, 2], [0, 0, 0]])


def test_what_no_kernel_does_stays() -> None:
    mod = module(lambda x, at, new: relax.op.scatter_elements(x, at, new, 0, "mean"),
                 ((4,), "float32"), ((2,), "int64"), ((2,), "float32"))  # fmt: skip
    assert own_operators(mod, H200) is mod
