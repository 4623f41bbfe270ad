"""Constant weights of 4 and 8 bits stay what they are where one product with few rows reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from subtune.core.forms import ANY, Forms
from subtune.passes.exprs import array_of, make_const, op_name
from subtune.passes.packed_weights import packed_weights
from subtune.passes.partition import partition
from subtune.pipeline import normalize
from tests.packed_weights import PACKS, Case, F

CASES = {
    "blocks": Case(2, 20, 96),
    "blocks with zero points": Case(1, 20, 96, zero="blocks"),
    "a block for a row": Case(3, 7, 64, size=64),
    "a short last block": Case(2, 20, 80),
    "an odd row": Case(2, 5, 77, size=16, zero="blocks"),
    "int4": Case(2, 20, 96, signed=True, zero="blocks"),
    "uint8": Case(16, 20, 96, bits=8, zero="blocks"),
    "int8": Case(2, 20, 96, bits=8, signed=True),
    "int8 with zero points": Case(2, 20, 96, bits=8, signed=True, zero="blocks"),
    "two bits": Case(2, 20, 96, bits=2),
}


def operands(mod: tvm.IRModule) -> list[np.ndarray]:
    """The constants of the loops that make weights."""
    found = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    (call,) = [value for value in found if op_name(value) == "relax.call_tir"]
    return [array for part in call.args[1].fields if (array := array_of(part)) is not None]


@pytest.mark.parametrize("name", CASES)
def test_weights_are_what_they_were(name: str, agree: Callable[..., None], ops: Callable[..., Any]) -> None:
    case = CASES[name]
    before = case.module()
    after = packed_weights(before, PACKS)
    assert ops(after) == {"call_tir": 1, "permute_dims": 1, "matmul": 1}
    packed, scale, *zero = operands(after)
    bits = max(case.bits, 4)
    assert packed.nbytes == case.columns * -(-case.length * bits // 8)
    assert scale.shape == (case.columns, case.blocks)
    assert [part.dtype for part in zero] == ([np.uint8] if case.zero else [])
    agree(before, after)
    agree(before, normalize(before, forms=PACKS))


def test_the_first_of_two_is_the_lower_nibble() -> None:
    case = CASES["an odd row"]
    packed, _, zero = operands(packed_weights(case.module(), PACKS))
    values, _, points = case.integers
    values = values.reshape(5, -1)[:, :77]
    np.testing.assert_array_equal(packed[:, :-1] & 15, values[:, :-1:2])
    np.testing.assert_array_equal(packed[:, :-1] >> 4, values[:, 1::2])
    np.testing.assert_array_equal(packed[:, -1], values[:, -1])
    np.testing.assert_array_equal(zero, points)


def test_scales_of_an_axis_or_of_all(module: Callable[..., tvm.IRModule], agree: Callable[..., None]) -> None:
    """As weights of int8 lie where nothing else is quantised: [K, N] with a scale for each column, or turned."""
    rng = np.random.default_rng(0)
    forms = (((48, 24), 1, False), ((24, 48), 0, True), ((48, 24), None, False), ((24, 48), None, True))
    for shape, axis, turned in forms:
        count = 1 if axis is None else shape[axis]
        bits, scale = rng.integers(-127, 128, shape).astype(np.int8), rng.random(count).astype(F)
        dims = () if axis is None else (count,)

        parts = [make_const(part) for part in (bits, scale.reshape(dims), np.zeros(dims, np.int8))]
        w = relax.op.dequantize(*parts, axis=axis or 0, out_dtype="float32")
        w = relax.op.permute_dims(w) if turned else w
        before = module([((3, 48), "float32")], partial(relax.op.matmul, x2=w))
        after = packed_weights(before, PACKS)
        packed, scales = operands(after)
        np.testing.assert_array_equal(packed, bits if turned else bits.T)
        assert scales.shape == (24, 1)
        agree(before, after)


def summed_rows(case: Case) -> tvm.IRModule:
    """The scales belong to what is summed: every element of a row has its own."""

    def body(y: Any, x: Any, r: Any) -> Any:
        return relax.op.matmul(r, relax.op.permute_dims(case.weight(), [1, 0]))

    return case.module(body)


def read_twice(case: Case) -> tvm.IRModule:
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((case.rows, case.length), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            w = bb.emit(case.weight())
            y = bb.emit(relax.op.matmul(x, w))
            out = bb.emit_output(relax.op.add(y, bb.emit(relax.op.matmul(bb.emit(relax.op.nn.relu(x)), w))))
        bb.emit_func_output(out)
    return bb.finalize()


BLOCKS = CASES["blocks"]
FLOATS = {
    "many rows": replace(CASES["blocks with zero points"], rows=17).module(),
    "many rows, a short last block": replace(CASES["a short last block"], rows=17).module(),
    "two readers": read_twice(BLOCKS),
    "a vector": replace(BLOCKS, columns=1).module(),
    "blocks of no whole words": replace(BLOCKS, size=12).module(),
    "halves": replace(BLOCKS, rows=17, dtype="float16").module(),
}


@pytest.mark.parametrize("name", FLOATS)
def test_what_becomes_floats(name: str, ops: Callable[..., Any], agree: Callable[..., None]) -> None:
    before = FLOATS[name]
    after = packed_weights(before, PACKS)
    assert ops(after)["call_tir"] == ops(after)["dequantize"] == 0
    products = [
        b.value for block in after["main"].body.blocks for b in block.bindings if op_name(b.value) == "relax.matmul"
    ]
    weights = [product.args[1] for product in products]
    assert all(weight.same_as(weights[0]) and array_of(weight) is not None for weight in weights)
    if name != "halves":  # of which LLVM's own sums differ
        agree(before, after)


def test_scales_along_the_sum(ops: Callable[..., Any], agree: Callable[..., None]) -> None:
    """Every element of a row has its own: floats, beside the bits of another product."""
    before = summed_rows(BLOCKS)
    after = packed_weights(before, PACKS)
    assert ops(after) == {"matmul": 1}
    agree(before, after)


def test_other_readers_keep_theirs(ops: Callable[..., Any]) -> None:
    """Only products are looked at; what constant folding would not make larger stays small."""
    mod = BLOCKS.module(lambda y, x, r: relax.op.add(y, relax.op.sum(BLOCKS.weight(), [0])))
    after = packed_weights(mod, PACKS)
    assert (ops(after)["call_tir"], ops(after)["dequantize"]) == (1, 1)


def test_devices_without_such_kernels_fold_all() -> None:
    mod = BLOCKS.module()
    assert packed_weights(mod, ANY).same_as(mod)


def test_one_workload_with_what_follows() -> None:
    def body(y: Any, x: Any, r: Any) -> Any:
        return relax.op.add(relax.op.nn.gelu(relax.op.add(y, make_const(np.ones(20, F)))), r)

    mod = normalize(BLOCKS.module(body), forms=PACKS)
    (group,) = partition(mod, PACKS).groups
    assert group.ops == ("weights_0", "permute_dims_0", "matmul_0", "add_0", "gelu_0", "add_1")


@pytest.mark.parametrize("as_halves", [False, True])
def test_products_of_halves(as_halves: bool) -> None:
    """Weights are halves where a device multiplies those, else float32 however the rest travels."""
    forms = replace(PACKS, packed_halves=as_halves)
    mod = normalize(replace(BLOCKS, dtype="float16").module(), forms=forms)
    _, scale = operands(mod)
    assert str(scale.dtype) == ("float16" if as_halves else "float32")
    (product,) = [
        b.value for block in mod["main"].body.blocks for b in block.bindings if op_name(b.value) == "relax.matmul"
    ]
    assert {str(arg.ty.dtype) for arg in product.args} == {"float16" if as_halves else "float32"}
    (group,) = partition(mod, forms).groups
    assert "matmul_0" in group.ops


def test_scales_that_a_half_cannot_hold_stay_float32() -> None:
    """Then the product is rounded, and not both of its factors."""
    forms = replace(PACKS, packed_halves=True)
    case = replace(BLOCKS, dtype="bfloat16")  # scales are of float16
    _, scale = operands(normalize(case.module(), forms=forms))
    assert str(scale.dtype) == "float32"


ONLY_HALVES = Forms(packed_rows=16, packed_halves=True, packed_floats=False, packed_block=32, half_row=8)


@pytest.mark.parametrize(
    ("case", "is_packed"),
    [
        (replace(BLOCKS, dtype="float16", length=64, size=32), True),
        (replace(BLOCKS, dtype="float16", length=64, size=64), True),
        (replace(BLOCKS, dtype="float16", length=24, size=24), True),
        (replace(BLOCKS, dtype="float16", length=20, size=20), False),
        (replace(BLOCKS, dtype="float16", length=64, size=16), False),
        (replace(BLOCKS, dtype="float16", length=96, size=48), False),
        (replace(BLOCKS, dtype="float16", length=80, size=32), False),
        (replace(BLOCKS, length=64, size=32), False),
    ],
    ids=lambda value: f"{value.dtype} {value.length} by {value.size}" if isinstance(value, Case) else "",
)
def test_devices_say_which_blocks_and_types(case: Case, is_packed: bool, ops: Callable[..., Any]) -> None:
    assert ops(normalize(case.module(), forms=ONLY_HALVES))["call_tir"] == is_packed
