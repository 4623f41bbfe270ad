"""Whether rows past the last may be computed: only where no row follows another, and rows are the first dim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te, tirx
from tvm.script import tirx as T

from subtune.core.workload import Workload
from subtune.dynamic.workload import DynamicWorkload, dynamic_workload, has_free_rows
from tests.backends.workloads import build as built
from tests.backends.workloads import dense, elementwise, layer_norm, softmax
from tests.dynamic.flat_kernels import of_rows


def computed(shape: Callable[[int], tuple[int, ...]], value: Callable[..., Any], *others: str) -> DynamicWorkload:
    """value(x[rows, 8], others...) at every place of `shape(rows)`; others are `table[64, 8]`, `places[rows]` and the
    scalar `one[]`."""

    def build(rows: int) -> Workload:
        shapes = {"x": (rows, 8), "table": (64, 8), "places": (rows,), "one": ()}
        given = [
            te.placeholder(shapes[name], "int64" if name == "places" else "float32", name) for name in ("x", *others)
        ]
        out = te.compute(shape(rows), lambda *at: value(rows, at, *given), "out")
        return Workload.of(te.create_prim_func([*given, out]), 1)

    return of_rows(build)


def summed(value: Callable[..., Any], over: Callable[[int], int]) -> DynamicWorkload:
    """The sum of value(x[rows, 8], rows, i, j, k) over k in each of 8 columns."""

    def build(rows: int) -> Workload:
        x, k = te.placeholder((rows, 8), name="x"), te.reduce_axis((0, over(rows)), "k")
        out = te.compute((rows, 8), lambda i, j: te.sum(value(x, rows, i, j, k), k), "out")
        return Workload.of(te.create_prim_func([x, out]), 1)

    return of_rows(build)


def total(rows: int) -> Workload:
    x, k = te.placeholder((rows, 8), name="x"), te.reduce_axis((0, rows), "k")
    return Workload.of(te.create_prim_func([x, te.compute((8,), lambda j: te.sum(x[k, j], k), "out")]), 1)


def cumulative(rows: int) -> Workload:
    """A row is the sum of the one before and its own."""

    @T.prim_func(private=True, s_tir=True)
    def func(x: T.Buffer((rows, 8), "float32"), out: T.Buffer((rows, 8), "float32")):
        for i, j in T.grid(rows, 8):
            with T.sblock("scan"):
                vi, vj = T.axis.remap("SS", [i, j])
                out[vi, vj] = x[vi, vj] + T.if_then_else(vi > 0, out[vi - 1, vj], T.float32(0))

    return Workload.of(func, 1)


def same(rows: int) -> tuple[int, ...]:
    return (rows, 8)


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(lambda: of_rows(lambda rows: elementwise(rows, 8)), id="elementwise"),
        pytest.param(lambda: of_rows(lambda rows: dense(rows, 16, 8)), id="dense"),
        pytest.param(lambda: of_rows(lambda rows: softmax(rows, 8)), id="softmax"),
        pytest.param(lambda: of_rows(lambda rows: layer_norm(rows, 8)), id="layer norm"),
        pytest.param(lambda: computed(same, lambda n, at, x: x[at[0], 7 - at[1]]), id="columns reversed"),
        pytest.param(lambda: computed(same, lambda n, at, x: x[at[0], at[1]] + at[0]), id="a row's number as a value"),
        pytest.param(lambda: computed(same, lambda n, at, x, t: x[at] + t[5, at[1]], "table"), id="one row of a table"),
        pytest.param(lambda: computed(same, lambda n, at, x, one: x[at] * one(), "one"), id="a scalar"),
        pytest.param(lambda: summed(lambda x, n, i, j, k: x[i, k], lambda n: 8), id="sum over a row"),
    ],
)
def test_rows_by_themselves(workload):
    assert has_free_rows(workload())


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(lambda: computed(same, lambda n, at, x: x[n - 1 - at[0], at[1]]), id="reversal"),
        pytest.param(lambda: computed(same, lambda n, at, x: x[te.max(at[0] - 1, 0), at[1]]), id="the row before"),
        pytest.param(lambda: computed(same, lambda n, at, x: x[n - 1, at[1]]), id="the last row"),
        pytest.param(lambda: of_rows(cumulative), id="cumulative sum"),
        pytest.param(
            lambda: summed(lambda x, n, i, j, k: tirx.if_then_else(k <= i, x[k, j], 0.0), lambda n: n),
            id="sum of all before",
        ),
        pytest.param(lambda: of_rows(total), id="sum over rows"),
        pytest.param(lambda: computed(lambda n: (8, n), lambda n, at, x: x[at[1], at[0]]), id="transposed"),
        pytest.param(lambda: computed(same, lambda n, at, x, p: x[p[at[0]], at[1]], "places"), id="rows that are read"),
        pytest.param(
            lambda: computed(same, lambda n, at, x, t, p: x[at] + t[p[at[0]], at[1]], "table", "places"),
            id="rows of a table that are read",
        ),
        pytest.param(
            lambda: computed(same, lambda n, at, x, t: x[at] + t[at[0], at[1]], "table"), id="its row of a table"
        ),
        pytest.param(lambda: computed(lambda n: (n, n), lambda n, at, x: x[at[0], 0] + x[at[1], 1]), id="all pairs"),
        pytest.param(lambda: computed(lambda n: (1, n, 8), lambda n, at, x: x[at[1], at[2]]), id="not the first dim"),
        pytest.param(lambda: computed(lambda n: (2 * n, 8), lambda n, at, x: x[at[0] // 2, at[1]]), id="each twice"),
    ],
)
def test_rows_that_follow_others(workload):
    assert not has_free_rows(workload())


def test_two_extents():
    points = [{"batch": a, "seq": b} for a, b in ((11, 13), (13, 19), (17, 11), (19, 29), (23, 17), (29, 31))]

    def build(batch: int, seq: int) -> Workload:
        return built(lambda emit, x: emit(x + x), [(batch, seq, 8)])

    def outer(batch: int, seq: int) -> Workload:
        x, y = te.placeholder((batch, 8), name="x"), te.placeholder((seq, 8), name="y")
        out = te.compute((batch, seq, 8), lambda i, j, c: x[i, c] + y[j, c], "out")
        return Workload.of(te.create_prim_func([x, y, out]), 1)

    for make in (build, outer):
        found = dynamic_workload([make(**point) for point in points], points)
        assert isinstance(found, DynamicWorkload)
        assert len(found.extents) == 2
        assert not has_free_rows(found)


def test_a_product_of_symbols_is_one_extent():
    points = [{"batch": a, "seq": b} for a, b in ((11, 13), (13, 19), (17, 11), (19, 29), (23, 17), (29, 31))]
    found = dynamic_workload([dense(point["batch"] * point["seq"], 16, 8) for point in points], points)
    assert isinstance(found, DynamicWorkload)
    assert [str(dim) for dim in found.extents] == ["batch*seq"]
    assert found.extents_at({"batch": 3, "seq": 5}) == (15,)
    assert [str(dim) for dim in found.shapes[0]] == ["batch*seq", "8"]
    assert has_free_rows(found)


def test_an_extent_is_no_half_of_another():
    """Half of an odd extent is none."""
    twice = computed(lambda n: (2 * n, 8), lambda n, at, x: x[at[0] // 2, at[1]])
    assert [str(dim) for dim in twice.extents] == ["seq"]
    assert [arg.shape for arg in twice.at((5,)).args] == [(5, 8), (10, 8)]
