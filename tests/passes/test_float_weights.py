"""Weights that stay integers in no product are floats before anything is tuned; activations are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from subtune.passes.exprs import array_of, make_const
from subtune.passes.float_weights import float_weights

RNG = np.random.default_rng(3)


def values(mod: tvm.IRModule) -> list[Any]:
    return [binding.value for block in mod["main"].body.blocks for binding in block.bindings]


def product(made: Any, dims: tuple[int, int] = (2, 12)) -> tvm.IRModule:
    """x times what `made` gives, [12, 8]."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(dims, "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(bb.emit(relax.op.matmul(x, made(bb))))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize("axis", [0, 1, None])
def test_one_constant(axis: int | None) -> None:
    q = RNG.integers(-128, 128, (12, 8)).astype(np.int8)
    dims = () if axis is None else (q.shape[axis],)
    scale, zero = RNG.random(dims, np.float32), RNG.integers(-9, 9, dims).astype(np.int8)
    parts = [make_const(np.asarray(part)) for part in (q, scale, zero)]
    (call,) = values(float_weights(product(lambda bb: bb.emit(relax.op.dequantize(*parts, axis=axis or 0)))))
    s, z = (np.asarray(part)[:, None] if axis == 0 else part for part in (scale, zero))
    np.testing.assert_array_equal(array_of(call.args[1]), (q.astype(np.int32) - z).astype(np.float32) * s)


def test_views_of_blocks_are_folded_with_them() -> None:
    """As blocks of weights are imported: a row for each."""
    q, scale = RNG.integers(0, 16, (24, 4)).astype(np.uint8), RNG.random(24).astype(np.float32)
    zero = RNG.integers(0, 16, 24).astype(np.uint8)

    def made(bb: Any) -> Any:
        rows = bb.emit(relax.op.dequantize(*map(make_const, (q, scale, zero)), axis=0))
        return bb.emit(relax.op.permute_dims(bb.emit(relax.op.reshape(rows, (8, 12))), [1, 0]))

    (call,) = values(float_weights(product(made)))
    wanted = ((q.astype(np.int32) - zero[:, None]).astype(np.float32) * scale[:, None]).reshape(8, 12).T
    np.testing.assert_array_equal(array_of(call.args[1]), wanted)


def test_activations_are_left() -> None:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 12), "int8"))
    with bb.function("main", [x]):
        with bb.dataflow():
            one, none = make_const(np.float32(0.1).reshape(())), make_const(np.int8(0).reshape(()))
            out = bb.emit_output(bb.emit(relax.op.dequantize(x, one, none, axis=0)))
        bb.emit_func_output(out)
    mod = bb.get()
    assert float_weights(mod).same_as(mod)
