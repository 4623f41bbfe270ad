"""Decoding with grouped queries: heads that share keys and values become rows of one product."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import relax
from tvm.relax import op

from subtune.passes.shared_heads import fold_shared_heads

BATCH, GROUPS, TIMES, KEYS, HEAD = 2, 3, 4, 11, 8
HEADS = GROUPS * TIMES
MASKS: dict[str, tuple[int, ...]] = {
    "none": (),
    "of keys": (BATCH, 1, 1, KEYS),
    "of heads": (1, HEADS, 1, KEYS),
    "of all": (BATCH, HEADS, 1, KEYS),
    "one row": (KEYS,),
}


def attention(rows: int, mask: str, axis: int = 1) -> Any:
    """The module of an attention whose keys and values are repeated along `axis`, and what it is given."""

    def body(q: Any, k: Any, v: Any, *masks: Any) -> Any:
        k, v = op.repeat(k, TIMES, axis), op.repeat(v, TIMES, axis)
        scores = op.multiply(op.matmul(q, op.permute_dims(k, [0, 1, 3, 2])), relax.const(0.3))
        for one in masks:
            scores = op.add(scores, one)
        return op.matmul(op.nn.softmax(scores, -1), v)

    shared = ((BATCH, GROUPS, KEYS, HEAD), "float32")
    inputs = [((BATCH, HEADS, rows, HEAD), "float32"), shared, shared]
    return [*inputs, (MASKS[mask], "float32")] if MASKS[mask] else inputs, body


@pytest.mark.parametrize("mask", MASKS)
def test_heads_of_one_row_are_rows(mask: str, module: Any, ops: Any, agree: Any) -> None:
    before = module(*attention(1, mask))
    after = fold_shared_heads(before, folds=True)
    found = ops(after)
    assert found["repeat"] == 0
    assert found["matmul"] == 2
    products = [b.var.ty for b in after["main"].body.blocks[0].bindings if "matmul" in str(b.value.op)]
    assert [[int(d) for d in ty.shape] for ty in products] == [
        [BATCH, GROUPS, TIMES, KEYS], [BATCH, GROUPS, TIMES, HEAD]]  # fmt: skip
    softmax = next(b.var.ty for b in after["main"].body.blocks[0].bindings if "softmax" in str(b.value.op))
    assert [int(d) for d in softmax.shape] == [BATCH, GROUPS, TIMES, KEYS]  # no view between the two
    agree(before, after)


def test_heads_of_several_rows_stay(module: Any) -> None:
    before = module(*attention(5, "none"))
    assert fold_shared_heads(before, folds=True).same_as(before)


def test_it_is_for_devices_that_say_so(module: Any) -> None:
    before = module(*attention(1, "none"))
    assert fold_shared_heads(before).same_as(before)


def test_repeats_along_another_axis_stay(module: Any, ops: Any) -> None:
    def body(q: Any, k: Any) -> Any:
        return op.matmul(q, op.permute_dims(op.repeat(k, 2, 0), [0, 1, 3, 2]))

    before = module([((4, 3, 1, 8), "float32"), ((2, 3, 5, 8), "float32")], body)
    assert fold_shared_heads(before, folds=True).same_as(before)
