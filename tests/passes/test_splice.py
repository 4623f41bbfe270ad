"""Splicing tuned kernels in: packed constants, untouched neighbours, the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import op
from tvm.s_tir import Schedule
from tvm.script import tirx as T
from tvm_ffi import structural_equal

from subtune.core.kernel import Kernel, Packing
from subtune.passes.extract import extract, tir_calls
from subtune.passes.outline import outline
from subtune.passes.partition import partition
from subtune.passes.splice import splice
from tests.plain_tvm import compiled

F32 = "float32"
WEIGHTS = [np.random.default_rng(seed).standard_normal((8, 8)).astype(F32) for seed in range(2)]


@T.prim_func(private=True, s_tir=True)
def packed_dense(
    x: T.Buffer((4, 8), F32),
    w: T.Buffer((2, 8, 4), F32),
    y: T.Buffer((4, 8), F32),
):
    """relu(x @ w) with w[k, n] packed as [n / 4][k][n % 4]."""
    acc = T.sblock_alloc_buffer((4, 8))
    for i, j, k in T.grid(4, 8, 8):
        with T.sblock("dense"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                acc[vi, vj] = T.float32(0)
            acc[vi, vj] = acc[vi, vj] + x[vi, vk] * w[vj // 4, vk, vj % 4]
    for i, j in T.grid(4, 8):
        with T.sblock("relu"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = T.max(acc[vi, vj], T.float32(0))


PACKED = Kernel(packed_dense, packings=((1, Packing(split=((8,), (2, 4)), order=(1, 0, 2))),))


def dense_layers(weights: list[np.ndarray]) -> tvm.IRModule:
    """relu(x @ w) for each of the weights, then a softmax; outlined."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), F32))
    with bb.function("main", [x]):
        with bb.dataflow():
            y: Any = x
            for weight in weights:
                y = bb.emit(op.nn.relu(bb.emit(op.matmul(y, relax.const(weight, F32)))))
            result = bb.emit_output(bb.emit(op.nn.softmax(y, axis=-1)))
        bb.emit_func_output(result)
    mod = bb.get()
    return outline(mod, partition(mod))


def run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    vm = relax.VirtualMachine(compiled(mod), tvm.cpu())
    return vm["main"](tvm.runtime.tensor(x)).numpy()


def weights_of(mod: tvm.IRModule) -> list[Any]:
    args = [arg for call in tir_calls(mod) for arg in call.args[1].fields]
    return [arg for arg in args if isinstance(arg, GenericConst)]


def test_packed_kernel_computes_the_same() -> None:
    mod = dense_layers(WEIGHTS)
    spliced = splice(mod, {"fused_matmul_relu": PACKED})
    assert [tuple(w.value.shape) for w in weights_of(spliced)] == [(2, 8, 4)] * 2
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(F32)
    np.testing.assert_allclose(run(spliced, x), run(mod, x), rtol=1e-5, atol=1e-6)


def test_the_rest_and_the_argument_are_untouched() -> None:
    mod = dense_layers(WEIGHTS)
    before = mod.script(show_meta=True)
    spliced = splice(mod, {"fused_matmul_relu": PACKED})
    assert structural_equal(spliced["tir_softmax"], mod["tir_softmax"])
    assert mod.script(show_meta=True) == before


def test_equal_constants_are_packed_once() -> None:
    one, two = weights_of(splice(dense_layers([WEIGHTS[0], WEIGHTS[0].copy()]), {"fused_matmul_relu": PACKED}))
    assert one.same_as(two)
    one, two = weights_of(splice(dense_layers(WEIGHTS), {"fused_matmul_relu": PACKED}))
    assert not one.same_as(two)


def test_scheduled_trace_without_packing() -> None:
    mod = dense_layers(WEIGHTS)
    (dense, _) = extract(mod)
    sch = Schedule(dense.workload.func)
    loops = sch.get_loops(sch.get_sblock("matmul"))
    sch.parallel(loops[0])
    spliced = splice(mod, {dense.name: Kernel(sch.mod["main"], trace=sch.trace)})
    assert [w.same_as(v) for w, v in zip(weights_of(spliced), weights_of(mod), strict=True)] == [True, True]
    assert "global_symbol" not in spliced[dense.name].attrs
    x = np.random.default_rng(4).standard_normal((4, 8)).astype(F32)
    np.testing.assert_allclose(run(spliced, x), run(mod, x), rtol=1e-5, atol=1e-6)


def test_nothing_to_splice_changes_nothing() -> None:
    mod = dense_layers(WEIGHTS)
    assert structural_equal(splice(mod, {}), mod)


def test_unknown_kernel_and_packed_variable_are_our_bugs() -> None:
    with pytest.raises(AssertionError, match="no PrimFunc called nobody"):
        splice(dense_layers(WEIGHTS), {"nobody": PACKED})
    wrong = Kernel(packed_dense, packings=((0, Packing(split=((4,), (8,)), order=(0, 1))),))
    with pytest.raises(AssertionError, match="argument 0 of fused_matmul_relu is packed, but no constant"):
        splice(dense_layers(WEIGHTS), {"fused_matmul_relu": wrong})
