"""How reductions and stages of elements lie in memory."""

from __future__ import annotations

import pytest
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from subtune.core.kernel import NotApplicable
from subtune.patterns.row_elements import RowElements, row_elements
from subtune.patterns.strided import strided
from subtune.tir.blocks import root_stages, stage_block


@T.prim_func(s_tir=True)
def total(x: T.Buffer((T.int64(57), T.int64(40), T.int64(25), T.int64(31))), y: T.Buffer((T.int64(40), T.int64(25)))):
    for n, h, w, k in T.grid(T.int64(57), T.int64(40), T.int64(25), T.int64(31)):
        with T.sblock("total"):
            i, j, r, s = T.axis.remap("SSRR", [h, w, n, k])
            with T.init():
                y[i, j] = T.float32(0)
            y[i, j] = y[i, j] + x[r, i, j, s]


@T.prim_func(s_tir=True)
def windows(x: T.Buffer((T.int64(20),)), y: T.Buffer((T.int64(9),))):
    for h, k in T.grid(T.int64(9), T.int64(3)):
        with T.sblock("window"):
            i, r = T.axis.remap("SR", [h, k])
            with T.init():
                y[i] = T.float32(0)
            y[i] = y[i] + x[i * T.int64(2) + r]


@T.prim_func(s_tir=True)
def scaled(
    x: T.Buffer((T.int64(2), T.int64(12), T.int64(5), T.int64(7))),
    group: T.Buffer((T.int64(2), T.int64(4))),
    scale: T.Buffer((T.int64(12),)),
    y: T.Buffer((T.int64(2), T.int64(12), T.int64(5), T.int64(7))),
):
    for n, c, h, w in T.grid(T.int64(2), T.int64(12), T.int64(5), T.int64(7)):
        with T.sblock("scaled"):
            i, j, k, m = T.axis.remap("SSSS", [n, c, h, w])
            y[i, j, k, m] = (x[i, j, k, m] - group[i, j // T.int64(3)]) * scale[j]


def block_of(func: object) -> object:
    return stage_block(root_stages(Schedule(func).mod["main"])[0])


def test_runs_are_joined_in_the_order_of_memory() -> None:
    found = strided(block_of(total))
    assert not isinstance(found, NotApplicable)
    assert [(run.is_reduced, run.extent) for run in found.runs] == [(True, 57), (False, 1000), (True, 31)]
    assert found.is_joined == (True, True)
    assert (found.size(is_reduced=True), found.size(is_reduced=False)) == (57 * 31, 1000)


def test_what_is_read_twice_is_refused() -> None:
    found = strided(block_of(windows))
    assert isinstance(found, NotApplicable)
    assert "several times" in found.reason


@pytest.mark.parametrize(("rows", "runs"), [(8, [3, 35]), (24, [35]), (2, [12, 35]), (1, [2, 12, 35])])
def test_an_axis_is_taken_apart_into_rows(rows: int, runs: list[int]) -> None:
    found = row_elements(block_of(scaled), rows)
    assert isinstance(found, RowElements)
    assert found.lead.extent == rows
    if rows in (8, 24):  # a channel's group is linear in what is left
        assert [run.extent for run in found.runs] == runs
    assert int(found.runs[-1].extent) in (7, 35)


def test_rows_that_the_axes_do_not_count() -> None:
    assert isinstance(row_elements(block_of(scaled), 5), NotApplicable)
