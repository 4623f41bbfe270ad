"""Quotients that are the same for all lanes of a vector lose the lane; others stay."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.lowering.uniform_lanes import uniform_lanes


def vectors(of: Any) -> tvm.IRModule:
    """A vector of 16 elements for each of 8 x 6: `of(i, j, lane)`."""

    @T.prim_func(s_tir=True)
    def main(out: T.Buffer((8, 6, 16), "int32")) -> None:
        for i, j in T.grid(8, 6):
            for lane in T.vectorized(16):
                out[i, j, lane] = of(i, j, lane)

    return tvm.IRModule({"main": main})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (lambda i, j, v: (i * 96 + j * 16 + v) // 48, lambda i, j, v: (i * 96 + j * 16) // 48),
        (lambda i, j, v: (i * 80 + j * 16 + v) % 48, lambda i, j, v: (i * 80 + j * 16) % 48 + v),
    ],
)
def test_one_run_of_memory(given: Any, wanted: Any) -> None:
    simplify = tirx.transform.StmtSimplify()
    found = simplify(uniform_lanes(vectors(given)))
    tvm.ir.assert_structural_equal(found, simplify(vectors(wanted)))


@pytest.mark.parametrize(
    "given",
    [
        lambda i, j, v: (i * 96 + j * 8 + v) // 48,  # starts within a run
        lambda i, j, v: (i * 96 + j * 16 + v) // 40,  # a run has lanes of two quotients
        lambda i, j, v: (i * 96 + j * 16 + v * 2) // 48,
        lambda i, j, v: (i * 96 + j * 16) // 48 + v,
    ],
)
def test_others(given: Any) -> None:
    before = vectors(given)
    tvm.ir.assert_structural_equal(uniform_lanes(before), before)
