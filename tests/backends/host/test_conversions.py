"""Candidates' modules without TVM's float16 conversions: the kernel's code is the same; who needs them has them."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.backends.host.conversions import ATTRIBUTE, without_conversions


def function(value, dtype: str = "float32") -> tirx.PrimFunc:
    x = te.placeholder((64,), dtype, "x")
    func = te.create_prim_func([x, te.compute((64,), lambda i: value(x[i]), "y")])
    return func.with_attr("global_symbol", "main")


def assembly(func: tirx.PrimFunc, device) -> tuple[list[str], set[str]]:
    """The lines of a module's assembly that are code, and the functions it defines."""
    text = tvm.compile(func, target=device.target(), tir_pipeline=PIPELINE).mod.inspect_source("s")
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    functions = {line.removesuffix(",@function").split()[1] for line in lines if line.endswith(",@function")}
    code = [line for line in lines if line and not line.startswith(".") and ":" not in line and " = " not in line]
    return code, functions


def test_only_the_conversions_are_missing(device):
    func = function(lambda x: te.exp(x * 3 + 1))
    usual, smaller = assembly(func, device), assembly(without_conversions(func), device)
    assert usual[1] - smaller[1] == {"__truncsfhf2", "__extendhfsf2"}
    assert usual[0][: len(smaller[0])] == smaller[0]


@pytest.mark.parametrize(
    "func",
    [
        function(lambda x: x * tirx.const(2, "float16"), "float16"),
        function(lambda x: x.astype("float16").astype("float32")),
        function(lambda x: tirx.reinterpret("float16", x), "uint16"),
    ],
    ids=["memory", "cast", "reinterpret"],
)
def test_a_kernel_with_float16_keeps_them(func, device):
    assert ATTRIBUTE not in (without_conversions(func).attrs or {})


def test_bfloat16_is_not_float16():
    func = function(lambda x: x.astype("bfloat16").astype("float32"))
    assert ATTRIBUTE in without_conversions(func).attrs


def test_the_kernel_runs(device):
    call = tvm.compile(without_conversions(function(lambda x: x * 3 + 1)), device.target(), tir_pipeline=PIPELINE)
    x, y = np.arange(64, dtype=np.float32), tvm.runtime.tensor(np.zeros(64, np.float32))
    call["main"](tvm.runtime.tensor(x), y)
    np.testing.assert_array_equal(y.numpy(), x * 3 + 1)
