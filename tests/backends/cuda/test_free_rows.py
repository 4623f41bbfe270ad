"""Tiles of more rows than there are copy the last row again, and compare no row in front of a load."""

from __future__ import annotations

import re
from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cuda.device import CUDA
from subtune.backends.cuda.lowering.free_rows import FREE_ROWS_ATTR, free_rows
from subtune.core.candidate import Candidate
from subtune.core.kernel import Kernel
from subtune.core.workload import Workload
from tests.backends.cuda.cuda_on_cpu import source
from tests.backends.cuda.gemm_workloads import convolution, product

MMA = Candidate.make("cuda.mma", bm=64, bn=64, bk=64, wm=2, wn=2, stages=2, raster=1, split=1)
SIMT = Candidate.make("cuda.simt", bm=64, bn=64, bk=8, tm=8, tn=4, stages=2, copy="registers", raster=1)


def copied(given: Any) -> tvm.IRModule:
    """20 rows of 6 in a tile of 32, each of which is `given(a, row, column)`, and which asks for free rows."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((20, 6), "float32"), tile: T.Buffer((32, 6), "float32")) -> None:
        for i, j in T.grid(32, 6):
            with T.sblock("copy"):
                row, column = T.axis.remap("SS", [i, j])
                tile[row, column] = given(a, row, column)

    return asking(main, "copy")


def asking(func: Any, *blocks: str) -> tvm.IRModule:
    """With free rows asked for by these blocks, whose first axis they are."""
    sch = Schedule(func)
    for name in blocks:
        sch.annotate(sch.get_sblock(name), FREE_ROWS_ATTR, 0)
    return sch.mod


def zero_unless(condition: Any, value: Any) -> Any:
    return tirx.if_then_else(condition, value, T.float32(0))


CLAMPED = [
    (lambda a, r, c: zero_unless(r < 20, a[r, c]), lambda a, r, c: a[tirx.min(r, 19), c]),
    (
        lambda a, r, c: zero_unless(tirx.all(r < 20, r + c > 2), a[r, c] * T.float32(2)),
        lambda a, r, c: zero_unless(tirx.min(r, 19) + c > 2, a[tirx.min(r, 19), c] * T.float32(2)),
    ),
]
KEPT = [
    lambda a, r, c: zero_unless(r + 1 < 20, a[r, c]),  # not of the row itself
    lambda a, r, c: zero_unless(c < 20, a[tirx.min(r, 19), c]),
    lambda a, r, c: a[tirx.min(r, 19), c],
]


@pytest.mark.parametrize(("given", "wanted"), CLAMPED)
def test_the_last_row_again(given: Any, wanted: Any) -> None:
    simplify = tvm.ir.transform.Sequential([tirx.transform.StmtSimplify()])
    found, expected = simplify(free_rows(copied(given))), simplify(copied(wanted))
    assert body_of(found) == body_of(expected)


@pytest.mark.parametrize("given", KEPT)
def test_others(given: Any) -> None:
    before = copied(given)
    assert body_of(free_rows(before)) == body_of(before)


def body_of(mod: tvm.IRModule) -> str:
    """What is stored."""
    (stored,) = re.findall(r"tile\[row, column\] = .*", mod.script())
    return stored


def stored(copied_rows: int, stored_rows: int) -> tvm.IRModule:
    """A tile of 32 rows of 6: so many of them are copied, the others are zeros; and so many are stored, with `b`."""

    @T.prim_func(s_tir=True)
    def main(
        a: T.Buffer((40, 6), "float32"), b: T.Buffer((40, 6), "float32"), out: T.Buffer((40, 6), "float32")
    ) -> None:
        tile = T.sblock_alloc_buffer((32, 6), "float32", scope="shared")
        for i, j in T.grid(32, 6):
            with T.sblock("copy"):
                row, column = T.axis.remap("SS", [i, j])
                tile[row, column] = T.if_then_else(row < copied_rows, a[row, column], T.float32(0))
        for i, j in T.grid(32, 6):
            with T.sblock("store"):
                row, column = T.axis.remap("SS", [i, j])
                T.where(i < stored_rows)
                out[row, column] = tile[row, column] * b[row, column]

    return asking(main, "copy", "store")


def test_what_is_computed_of_the_last_row_is_stored_again() -> None:
    text = free_rows(stored(20, 20)).script()
    assert "T.where" not in text
    last = "T.min(row, 19), column"
    assert f"out[{last}] = tile[row, column] * b[{last}]" in text


def test_zeros_are_not_stored() -> None:
    """In the place of a row that there is: of more rows than are copied."""
    text = free_rows(stored(20, 24)).script()
    assert "T.where(i < 24)" in text
    assert "out[row, column] = tile[row, column] * b[row, column]" in text


FLOAT32 = {"dtype": "float32", "acc": "float32"}
RAGGED = {  # workloads whose last tile is not full
    "product": (product(100, 64, 128, "nt"), MMA),
    "prologue": (product(100, 64, 128, "nt", scale=True), MMA),
    "few columns": (product(100, 40, 128, "nt"), MMA),
    "convolution": (convolution(1, 10, 128, 64, 1), MMA),
    "float32": (product(100, 64, 64, "nt", **FLOAT32), SIMT),
}


@pytest.mark.parametrize("name", RAGGED)
def test_no_load_is_compared(name: str) -> None:
    workload, candidate = RAGGED[name]
    text = source_of(workload, candidate)
    assert "? " not in text.split("__syncthreads")[0]
    assert "_pred_" not in text, "no asynchronous copy has a condition"
    assert "min(" in text


def test_nothing_is_compared_where_sums_are_stored_at_once() -> None:
    text = source_of(product(100, 64, 128, "nt", bias=True, residual=True, out="float32"), MMA)
    assert "< 100)" not in text


def test_what_surrounds_an_image_is_zero() -> None:
    """Of a row that is computed again, too."""
    text = source_of(convolution(1, 10, 64, 64, 3), MMA)
    assert "_pred_" in text
    assert "min(" in text


def source_of(workload: Workload, candidate: Candidate) -> str:
    device = as_device(CUDA("H100"))
    kernel = backends.schedule(workload, candidate, device)
    assert isinstance(kernel, Kernel)
    text = source(kernel.func, device.model)
    return text[text.index("main_kernel") :]
