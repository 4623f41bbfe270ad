"""Functions of single bytes are tables: which are, and that their entries are what the operators compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune import backends
from subtune.backends.cpu.device import CPU
from subtune.backends.cpu.lowering.pipeline import PIPELINE
from subtune.core.workload import Workload
from subtune.passes.byte_tables import byte_tables
from subtune.passes.extract import extract
from subtune.passes.legalize import LEGALIZATIONS
from subtune.passes.normalize_matmul import flatten_matmuls
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from tests.plain_tvm import compiled

SHAPE = (3, 256)


def rounded(x: Any, scale: float, zero: int, dtype: str) -> Any:
    return op.quantize(x, relax.const(np.float32(scale)), relax.const(zero, dtype), axis=0, out_dtype=dtype)


def widened(x: Any, scale: float, zero: int, dtype: str) -> Any:
    return op.dequantize(x, relax.const(np.float32(scale)), relax.const(zero, dtype), axis=0, out_dtype="float32")


def between(x: Any, scale: float, zero: int, dtype: str) -> Any:
    return widened(rounded(x, scale, zero, dtype), scale, zero, dtype)


def number(value: float) -> Any:
    return relax.const(np.float32(value))


def gelu(q: Any, dtype: str) -> Any:
    """As exporters write it, with a rounding behind each of five operators."""
    zero = 100 if dtype == "uint8" else -3
    x = widened(q, 0.03, zero, dtype)
    y = between(op.divide(x, number(1.4142135)), 0.02, zero, dtype)
    y = between(op.erf(y), 0.008, zero, dtype)
    y = between(op.add(y, number(1.0)), 0.01, zero, dtype)
    y = between(op.multiply(x, y), 0.04, zero, dtype)
    return rounded(op.multiply(y, number(0.5)), 0.02, zero, dtype)


def every_byte(dtype: str) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.tile(np.arange(limits.min, limits.max + 1).astype(dtype), (3, 1))


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    built = compiled(relax.transform.LegalizeOps(LEGALIZATIONS)(mod))
    return relax.VirtualMachine(built, tvm.cpu())["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_a_gelu_of_five_operators_is_one_table(module: Any, ops: Any, dtype: str) -> None:
    before = module([(SHAPE, dtype)], lambda q: gelu(q, dtype))
    after = byte_tables(before)
    assert ops(after)["take"] == 1
    assert ops(after)["erf"] == ops(after)["quantize"] == ops(after)["dequantize"] == 0
    # erf of float32 may round another way than that of a table's float64, once before it is rounded to a byte
    difference = run(before, every_byte(dtype)).astype(int) - run(after, every_byte(dtype)).astype(int)
    assert np.abs(difference).max() <= 1
    assert np.count_nonzero(difference[0]) <= 2


def test_of_exact_operators_the_table_is_exact(module: Any, ops: Any) -> None:
    def body(q: Any) -> Any:
        y = between(op.multiply(widened(q, 0.5, 7, "uint8"), number(3.0)), 0.75, 0, "int8")
        return rounded(op.nn.relu(op.sqrt(op.abs(y))), 0.125, 3, "uint8")

    before = module([(SHAPE, "uint8")], body)
    after = byte_tables(before)
    assert ops(after) == {"take": 1}
    np.testing.assert_array_equal(run(before, every_byte("uint8")), run(after, every_byte("uint8")))


def test_two_tensors_are_no_table(module: Any, ops: Any) -> None:
    def body(a: Any, b: Any) -> Any:
        return rounded(op.exp(op.add(widened(a, 0.1, 0, "uint8"), widened(b, 0.1, 0, "uint8"))), 0.1, 0, "uint8")

    before = module([(SHAPE, "uint8"), (SHAPE, "uint8")], body)
    assert ops(byte_tables(before)) == ops(before)


def test_a_change_of_scale_alone_is_no_table(module: Any, ops: Any) -> None:
    before = module([(SHAPE, "uint8")], lambda q: rounded(widened(q, 0.1, 0, "uint8"), 0.2, 3, "uint8"))
    assert ops(byte_tables(before)) == {"dequantize": 1, "quantize": 1}


def test_one_scale_a_channel_is_no_table(module: Any, ops: Any) -> None:
    def body(q: Any) -> Any:
        scales, zeros = relax.const(np.linspace(0.1, 0.2, 256, dtype="float32")), relax.const(np.zeros(256, "uint8"))
        x = op.dequantize(q, scales, zeros, axis=1, out_dtype="float32")
        return rounded(op.exp(x), 0.1, 0, "uint8")

    before = module([(SHAPE, "uint8")], body)
    assert ops(byte_tables(before))["take"] == 0


def behind_a_product(x: Any, w: Any) -> Any:
    acc = op.astype(op.matmul(op.reshape(x, (48, 64)), w, "int32"), "float32")
    q = op.reshape(rounded(op.multiply(acc, number(0.001)), 1.0, 128, "uint8"), (4, 12, 32))
    return rounded(op.exp(widened(q, 0.01, 128, "uint8")), 0.02, 0, "uint8")


@pytest.fixture
def dense(module: Any) -> Workload:
    """A product with a table behind it."""
    weight = relax.const(np.random.default_rng(0).integers(-128, 128, (64, 32)).astype("int8"))
    mod = byte_tables(module([((4, 12, 64), "uint8")], lambda x: behind_a_product(x, weight)))
    mod = flatten_matmuls(mod)
    (subgraph,) = extract(outline(mod, partition(mod)))
    return subgraph.workload


def test_it_is_an_epilogue(dense: Workload) -> None:
    assert [arg.dtype for arg in dense.args][-1] == "uint8"
    assert any(arg.shape == (256,) for arg in dense.args)


def test_vectors_are_looked_up_in_registers(dense: Workload) -> None:
    def code(name: str) -> str:
        device = CPU(name, threads=2)
        candidate = next(c for c in backends.candidates(dense, device) if c.family == "contraction_int8")
        kernel: Any = backends.schedule(dense, candidate, device)
        return str(tvm.compile(kernel.func, target=device.target(), tir_pipeline=PIPELINE).mod.inspect_source("asm"))

    assert "vpermi2b" in code("icelake-server") or "vpermt2b" in code("icelake-server")
    assert "vpermi2b" not in code("cascadelake")
    assert "vpermt2b" not in code("cascadelake")
