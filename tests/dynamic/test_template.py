"""Templates of several PrimFuncs: every other instance follows, differences are told, all instances are one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm import ir, te, tirx
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T

from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.kernel import Kernel, NotApplicable
from subtune.dynamic.template import Template, generalised
from tests.dynamic.flat_kernels import FlatKernel

SAMPLES = (67, 71, 73, 79)
DEVICE = as_device(CPU(threads=1))


def dense(rows: int) -> Any:
    """relu(x[rows, 8] @ w[8, 5])"""
    x, w = te.placeholder((rows, 8), name="x"), te.placeholder((8, 5), name="w")
    k = te.reduce_axis((0, 8), "k")
    y = te.compute((rows, 5), lambda i, j: te.sum(x[i, k] * w[k, j], k), "y")
    return te.create_prim_func([x, w, te.compute((rows, 5), lambda i, j: te.max(y[i, j], 0.0), "z")])


def outer(rows: int) -> Any:
    """x[rows, 4] @ y[rows, 4].T in rows*2 rows, the second half in negative"""
    x, y = te.placeholder((rows, 4), name="x"), te.placeholder((rows, 4), name="y")
    k = te.reduce_axis((0, 4), "k")
    z = te.compute((rows, rows), lambda i, j: te.sum(x[i, k] * y[j, k], k), "z")
    both = te.compute((2 * rows, rows), lambda i, j: te.if_then_else(i < rows, z[i % rows, j], -z[i % rows, j]), "both")
    return te.create_prim_func([x, y, both])


def reversal(rows: int) -> Any:
    @T.prim_func(private=True, s_tir=True)
    def func(x: T.Buffer((rows, 3), "float32"), y: T.Buffer((rows, 3), "float32")):
        for i, j in T.grid(rows, 3):
            with T.sblock("reverse"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[rows - 1 - vi, vj]

    return func


def mean(rows: int) -> Any:
    """The mean over rows, which divides by a float."""
    x, k = te.placeholder((rows, 4), name="x"), te.reduce_axis((0, rows), "k")
    total = te.compute((4,), lambda j: te.sum(x[k, j], k), "total")
    return te.create_prim_func([x, te.compute((4,), lambda j: total[j] / tirx.const(float(rows), "float32"), "mean")])


ALL = pytest.mark.parametrize("build", [dense, outer, reversal, mean])
_templates: dict[Any, Template] = {}


def template(build: Callable[[int], Any]) -> Template:
    if build not in _templates:
        found = generalised([build(rows) for rows in SAMPLES], [{"seq": rows} for rows in SAMPLES])
        assert isinstance(found, Template), found
        _templates[build] = found
    return _templates[build]


@ALL
@given(rows=st.sampled_from([2, 3, 5, 8, 64, 67, 79, 80, 127, 1000]))
def test_an_instance_is_what_would_be_built(build, rows):
    assert_structural_equal(template(build).at({"seq": rows}), build(rows))


@ALL
def test_symbols_are_those_of_the_points(build):
    assert template(build).symbols == ("seq",)


def test_what_is_the_same_everywhere_has_no_symbols():
    found = generalised([dense(6)] * 2, [{"seq": 1}, {"seq": 2}])
    assert isinstance(found, Template)
    assert (found.symbols, dict(found.holes)) == ((), {})
    assert_structural_equal(found.at({}), dense(6))


def test_two_symbols():
    def build(batch: int, seq: int) -> Any:
        x, y = te.placeholder((batch, seq, 4), name="x"), te.placeholder((seq, 4), name="y")
        return te.create_prim_func(
            [x, y, te.compute((batch * seq, 4), lambda i, j: x[i // seq, i % seq, j] * y[i % seq, j])]
        )

    pairs = [(67, 71), (71, 79), (73, 89), (79, 101), (83, 67), (89, 73)]
    found = generalised(
        [build(*pair) for pair in pairs], [dict(zip(("batch", "seq"), pair, strict=True)) for pair in pairs]
    )
    assert isinstance(found, Template)
    for batch, seq in (*pairs, (2, 3), (3, 2), (10, 128)):
        assert_structural_equal(found.at({"batch": batch, "seq": seq}), build(batch, seq))


def _with_dtype(rows: int) -> Any:
    x = te.placeholder((rows,), "float32" if rows == 71 else "float16", name="x")
    return te.create_prim_func([x, te.compute((rows,), lambda i: x[i] + x[i])])


def _with_operator(rows: int) -> Any:
    x = te.placeholder((rows,), name="x")
    return te.create_prim_func([x, te.compute((rows,), lambda i: x[i] + x[i] if rows == 71 else x[i] * x[i])])


def _with_rank(rows: int) -> Any:
    x = te.placeholder((rows,) * (2 if rows == 71 else 1), name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda *at: x(*at) + x(*at))])


def _with_fraction(rows: int) -> Any:
    x = te.placeholder((rows,), name="x")
    return te.create_prim_func([x, te.compute((rows,), lambda i: x[i] * tirx.const(1 / rows, "float32"))])


def _with_power(rows: int) -> Any:
    x = te.placeholder((rows,), name="x")
    return te.create_prim_func([x, te.compute((2 ** (rows - 66),), lambda i: x[i % rows])])


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (_with_dtype, "float16, float32, float16, float16"),
        (_with_operator, "prim.Add or prim.Mul"),
        (_with_rank, r"so many items of an array: \[1, 2\]"),
        (_with_fraction, "value of ir.FloatImm: 0.0149"),
        (_with_power, "2, 32, 128, 8192 is no polynomial of the symbols"),
    ],
)
def test_what_differs_by_more_is_told(build, reason):
    found = generalised([build(rows) for rows in SAMPLES], [{"seq": rows} for rows in SAMPLES])
    assert isinstance(found, NotApplicable)
    with pytest.raises(ValueError, match=f"^the instances differ by more than extents: .*{reason}"):
        raise ValueError(found.reason)


def _expected(build: Any, inputs: list[np.ndarray]) -> np.ndarray:
    if build is dense:
        return np.maximum(inputs[0] @ inputs[1], 0)
    if build is outer:
        return np.concatenate([inputs[0] @ inputs[1].T, -inputs[0] @ inputs[1].T])
    return inputs[0][::-1] if build is reversal else inputs[0].mean(axis=0)


@ALL
def test_all_instances_are_one_kernel(build):
    flat = [DEVICE.backend.comparable(build(rows), DEVICE) for rows in SAMPLES]
    found = generalised(flat, [{"seq": rows} for rows in SAMPLES])
    assert isinstance(found, Template), found
    kernel = FlatKernel(Kernel(found.symbolic(("seq",), {"seq": 40})), DEVICE)
    rng = np.random.default_rng(0)
    for rows in (1, 2, 3, 7, 16, 33, 40):
        shapes = [[int(dim) for dim in param.shape] for param in build(rows).params]
        inputs = [rng.standard_normal(shape).astype(np.float32) for shape in shapes[:-1]]
        got = kernel([rows], inputs, shapes[-1])
        np.testing.assert_allclose(got, _expected(build, inputs), rtol=1e-5, atol=1e-5)


def test_texts_are_no_names():
    """What is called may have numbers in its name."""

    def calling(name: str) -> tirx.PrimFunc:
        call = ir.Call(ir.Op.get("tirx.call_extern"), [ir.StringImm(name)], ret_ty=ir.PrimType("int32"))
        return tirx.PrimFunc([], tirx.Evaluate(call))

    points = [{"n": n} for n in (5, 7)]
    found = generalised([calling(f"attention<{point['n']}>") for point in points], points)
    assert isinstance(found, NotApplicable)
    assert "attention<5>" in found.reason
    assert isinstance(generalised([calling("attention")] * 2, points), Template)
