"""The last vector of a ragged axis: as many lanes as are left, and none of the others taken apart."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule

from subtune import backends
from subtune.backends.cpu.lowering.pipeline import PIPELINE, flat
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends import workloads

LANES = 16


def lowered(func: tirx.PrimFunc, device) -> str:
    target = device.target()
    mod = tvm.IRModule({"main": func.without_attr("global_symbol")})
    return str(flat(tirx.transform.BindTarget(target.with_host(target))(mod))["main"].script())


def called(func: tirx.PrimFunc, device, *arrays: np.ndarray) -> np.ndarray:
    """The last of `arrays` after a call of `func` with all of them."""
    kernel = tvm.compile(func.with_attr("global_symbol", "main"), target=device.target(), tir_pipeline=PIPELINE)["main"]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    kernel(*tensors)
    return tensors[-1].numpy()


def vectors(extent: int, choices: int) -> tirx.PrimFunc:
    """`x * 2` of x below one, written in vectors beyond the end, as nothing or as zeros, by so many equal `choices`."""
    x = te.placeholder((3, extent), "float32", "x")
    width = -(-extent // LANES) * LANES
    if choices:
        inside = lambda i, j, by: tirx.if_then_else(j < extent, x[i, j] * by, tirx.const(0.0, "float32"))  # noqa: E731
        twice = lambda i, j: inside(i, j, 2.0) + tirx.floor(inside(i, j, 0.5))  # noqa: E731
        y = te.compute((3, width), twice if choices == 2 else lambda i, j: inside(i, j, 2.0), "y")
    else:
        y = te.compute((3, extent), lambda i, j: x[i, j] * 2.0, "y")
    sch = Schedule(te.create_prim_func([x, y]))
    _, j = sch.get_loops(sch.get_sblock("y"))
    _, lane = sch.split(j, [None, LANES])
    sch.vectorize(lane)
    return sch.mod["main"]


@pytest.mark.parametrize("choices", [0, 1, 2])
@pytest.mark.parametrize("extent", [1, 5, 17, 31, 32, 47, 200])
def test_no_vector_is_taken_apart(extent, choices, device):
    func = vectors(extent, choices)
    assert not re.search(rf"range\({LANES}\)|_s in ", lowered(func, device))
    x = np.random.default_rng(0).random((3, extent), np.float32)
    width = -(-extent // LANES) * LANES if choices else extent
    y = np.full((3, width), np.nan, np.float32)
    y = called(func, device, x, y)
    np.testing.assert_array_equal(y[:, :extent], x * 2)
    assert not y[:, extent:].any()


def test_vectors_that_begin_anywhere_stay_as_they_are(device):
    x = te.placeholder((40,), "float32", "x")
    y = te.compute((3, LANES), lambda i, j: tirx.if_then_else(i * 3 + j < 20, x[i * 3 + j], 0.0), "y")
    sch = Schedule(te.create_prim_func([x, y]))
    sch.vectorize(sch.get_loops(sch.get_sblock("y"))[1])
    assert "if_then_else" in lowered(sch.mod["main"], device)
    given, found = np.arange(1, 41, dtype=np.float32), np.zeros((3, LANES), np.float32)
    found = called(sch.mod["main"], device, given, found)
    at = np.arange(3)[:, None] * 3 + np.arange(LANES)
    np.testing.assert_array_equal(found, np.where(at < 20, given[at], 0))


@pytest.mark.parametrize(("rows", "columns", "depth"), [(13, 37, 8), (29, 49, 20), (7, 95, 3)])
def test_a_ragged_product_keeps_its_sums_in_registers(rows, columns, depth, device):
    """B is given, so that its columns are padded by the kernel; bias and ReLU are part of the store."""
    whole = lambda *dims: [tirx.const(d, "int64") for d in dims]  # noqa: E731
    a, b = te.placeholder(whole(2, rows, depth), name="a"), te.placeholder(whole(2, depth, columns), name="b")
    bias = te.placeholder(whole(columns), name="bias")
    k = te.reduce_axis((tirx.const(0, "int64"), tirx.const(depth, "int64")), "k")
    c = te.compute(whole(2, rows, columns), lambda s, i, j: te.sum(a[s, i, k] * b[s, k, j], axis=k), "c")
    d = te.compute(c.shape, lambda s, i, j: te.max(c[s, i, j] + bias[j], 0.0), "d")
    workload = Workload.of(te.create_prim_func([a, b, bias, d]), 1)
    kernel = backends.schedule(workload, Candidate.make("contraction", mr=4, mt=1, nr=32, order="mn"), device)
    assert isinstance(kernel, Kernel), kernel
    assert "_s in " not in lowered(kernel.func, device)
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(shape, np.float32) for shape in ((2, rows, depth), (2, depth, columns), (columns,))]
    found = np.full((2, rows, columns), np.nan, np.float32)
    found = called(kernel.func, device, *given, found)
    np.testing.assert_allclose(found, np.maximum(given[0] @ given[1] + given[2], 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [37, 95, 702])
def test_rows_of_any_length_are_computed_in_vectors(length, device):
    workload = workloads.softmax(5, length)
    found = [c for c in backends.candidates(workload, device, 20) if c.family == "rowwise"]
    kernels = [backends.schedule(workload, candidate, device) for candidate in found]
    assert kernels
    assert all(isinstance(kernel, Kernel) for kernel in kernels)
    x = np.random.default_rng(2).standard_normal((5, length), np.float32)
    powers = np.exp(x * np.float32(0.125))
    for kernel in kernels:
        assert not re.search(r"_s in ", lowered(kernel.func, device))
        y = called(kernel.func, device, x, np.full((5, length), np.nan, np.float32))
        np.testing.assert_allclose(y, powers / powers.sum(1, keepdims=True), rtol=1e-5)
