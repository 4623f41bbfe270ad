"""What is recognised as a product with weights of few bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import relax

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.passes.exprs import make_const
from subtune.patterns.packed_product import PackedProduct, packed_product
from subtune.patterns.stages import anchored
from tests.packed_weights import PACKS, Case, F


def read(workload: Workload) -> PackedProduct:
    found = anchored(workload, packed_product)
    assert not isinstance(found, NotApplicable), found.reason
    return found[2]


CASES = {
    Case(2, 20, 96): PackedProduct(2, 20, 96, 4, 32, x=2, packed=0, scale=1, point=8),
    Case(1, 20, 96, zero="blocks"): PackedProduct(1, 20, 96, 4, 32, x=3, packed=0, scale=1, zero=2),
    Case(16, 5, 77): PackedProduct(16, 5, 77, 4, 32, x=2, packed=0, scale=1, point=8),
    Case(3, 20, 64, size=64, bits=8): PackedProduct(3, 20, 64, 8, 64, x=2, packed=0, scale=1, point=128),
    Case(3, 20, 64, bits=8, signed=True): PackedProduct(3, 20, 64, 8, 32, x=2, packed=0, scale=1),
}


@pytest.mark.parametrize("case", CASES)
def test_products(case: Case) -> None:
    assert read(case.workload()) == CASES[case]


def test_what_follows_does_not_matter() -> None:
    def body(y: Any, x: Any, r: Any) -> Any:
        return relax.op.add(relax.op.nn.gelu(relax.op.add(y, make_const(np.arange(20, dtype=F)))), r)

    case = Case(2, 20, 96)
    assert read(case.workload(body)) == CASES[case]


def test_halves() -> None:
    case = Case(2, 20, 96, dtype="float16")
    wanted = CASES[replace(case, dtype="float32")]
    assert read(case.workload()) == wanted
    assert read(case.workload(forms=replace(PACKS, packed_halves=True))) == replace(wanted, dtype="float16")
    mixed = replace(case, dtype="bfloat16")  # the scales are float32, and weights rounded when they are made
    assert read(mixed.workload(forms=replace(PACKS, packed_halves=True))) == replace(wanted, dtype="bfloat16")


def test_sizes() -> None:
    found = read(Case(2, 5, 77, size=16).workload())
    assert (found.blocks, found.weight_bytes) == (5, 5 * 39)


def test_other_products_are_none() -> None:
    w = make_const(np.ones((96, 20), F))
    case = Case(2, 20, 96)

    def body(y: Any, x: Any, r: Any) -> Any:
        return relax.op.matmul(x, w)

    assert isinstance(anchored(case.workload(body), packed_product), NotApplicable)
