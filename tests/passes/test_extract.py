"""Extract: the distinct workloads, in order of first use, with their figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from subtune.passes.extract import call_names, extract
from subtune.passes.outline import SUBGRAPHS_ATTR, outline
from subtune.passes.partition import partition

F32 = "float32"


def const(*shape: int, seed: int) -> Any:
    return relax.const(np.random.default_rng(seed).standard_normal(shape).astype(F32), F32)


@pytest.fixture(scope="module")
def outlined() -> tvm.IRModule:
    """Two equal dense layers with relu, then a softmax, on (4, 8)."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), F32))
    with bb.function("main", [x]):
        with bb.dataflow():
            y: Any = x
            for seed in range(2):
                y = bb.emit(op.nn.relu(bb.emit(op.matmul(y, const(8, 8, seed=seed)))))
            result = bb.emit_output(bb.emit(op.nn.softmax(y, axis=-1)))
        bb.emit_func_output(result)
    mod = bb.get()
    return outline(mod, partition(mod))


def test_equal_workloads_are_extracted_once(outlined: tvm.IRModule) -> None:
    dense, softmax = extract(outlined)
    assert (dense.name, dense.anchor, dense.ops, dense.uses, dense.position) == (
        "fused_matmul_relu",
        "matmul",
        ("matmul", "nn.relu"),
        2,
        0,
    )
    assert (softmax.name, softmax.anchor, softmax.uses, softmax.position) == ("tir_softmax", "nn.softmax", 1, 2)
    assert call_names(outlined) == ("fused_matmul_relu", "fused_matmul_relu", "tir_softmax")


def test_figures(outlined: tvm.IRModule) -> None:
    dense, _ = extract(outlined)
    assert dense.nbytes == (4 * 8 + 8 * 8 + 4 * 8) * 4
    assert dense.flops >= 2 * 4 * 8 * 8
    assert dense.intensity == dense.flops / dense.nbytes
    assert [(arg.shape, arg.is_constant, arg.is_output) for arg in dense.workload.args] == [
        ((4, 8), False, False),
        ((8, 8), True, False),
        ((4, 8), False, True),
    ]
    assert dense.summary()["key"] == dense.workload.key


def test_without_the_outline_attribute_the_name_stands_for_the_ops(outlined: tvm.IRModule) -> None:
    dense, _ = extract(outlined.without_attr(SUBGRAPHS_ATTR))
    assert (dense.anchor, dense.ops) == ("fused_matmul_relu", ("fused_matmul_relu",))


def test_keys_are_stable_across_models(outlined: tvm.IRModule) -> None:
    bb = relax.BlockBuilder()
    other = relax.Var("another_name", relax.TensorType((4, 8), F32))
    with bb.function("main", [other]):
        with bb.dataflow():
            y = bb.emit(op.tanh(bb.emit(op.sort(bb.emit(op.nn.softmax(other, axis=-1))))))
            result = bb.emit_output(y)
        bb.emit_func_output(result)
    mod = bb.get()
    keys = {s.anchor: s.workload.key for s in extract(outline(mod, partition(mod)))}
    assert keys["nn.softmax"] == {s.anchor: s.workload.key for s in extract(outlined)}["nn.softmax"]
    assert keys["tanh"] != keys["nn.softmax"]
