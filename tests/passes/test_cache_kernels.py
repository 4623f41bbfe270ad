"""PrimFuncs of caches in place: what appends rows and what pads them is told from what does more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from subtune import runtime
from subtune.passes.cache_kernels import append_of, appending, padded_rows, reading

HEADS, PAST, NEW, WIDTH = 2, 3, 2, 4


def function(*shapes: tuple[int, ...], out: tuple[int, ...], value: Callable[..., Any]) -> tirx.PrimFunc:
    """`value` of the placeholders and of the indices, at each element of the output."""
    given = [te.placeholder(wide(shape), "float32", f"p{i}") for i, shape in enumerate(shapes)]
    return te.create_prim_func([*given, te.compute(wide(out), lambda *at: value(*given, *at), name="out")])


def wide(shape: tuple[int, ...]) -> list[Any]:
    return [tirx.const(size, "int64") for size in shape]


def joined(value: Callable[..., Any]) -> tirx.PrimFunc:
    """Of new[row, head, column] and past[head, row, column]."""
    shapes = (NEW, HEADS, WIDTH), (HEADS, PAST, WIDTH)
    return function(*shapes, out=(HEADS, PAST + NEW, WIDTH), value=value)


def is_new(i: Any) -> Any:
    return tirx.LE(tirx.const(PAST, "int64"), i)


def appended() -> tirx.PrimFunc:
    return joined(lambda new, past, h, i, d: tirx.if_then_else(is_new(i), new[i - PAST, h, d] * 2, past[h, i, d]))


def run(func: tirx.PrimFunc, *arrays: np.ndarray) -> None:
    built = tvm.compile(func.with_attr("global_symbol", "main"), target="llvm")
    built["main"](*map(tvm.runtime.from_dlpack, arrays))


def filled(value: float, *shape: int) -> np.ndarray:
    """Where TVM takes an array as it lies."""
    array = runtime.aligned_array(shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    array[:] = value
    return array


def random(*shape: int) -> np.ndarray:
    array = filled(0, *shape)
    array[:] = np.random.default_rng(0).standard_normal(shape, np.float32)
    return array


@pytest.mark.parametrize("rows", [NEW, 5])
def test_rows_are_written_behind_those_that_are_there(rows):
    """And zeros behind them; nothing else is touched."""
    func = appended()
    found = append_of(func, 1)
    assert found is not None
    assert (found.source, found.axis, found.past) == (1, 1, PAST)
    new, array = random(NEW, HEADS, WIDTH), filled(7, HEADS, 16, WIDTH)
    run(appending(func, found, rows, 16), new, array)
    expected = np.full_like(array, 7)
    expected[:, PAST : PAST + rows] = 0
    expected[:, PAST : PAST + NEW] = 2 * new.transpose(1, 0, 2)
    np.testing.assert_array_equal(array, expected)


def test_constants_are_counted_without_the_source():
    func = joined(lambda new, past, h, i, d: tirx.if_then_else(is_new(i), new[i - PAST, h, d], past[h, i, d]))
    (new, past, out), attrs = func.params, {"layout_free_buffers": [1]}
    turned = tirx.PrimFunc([past, new, out], func.body, func.ret_type, tvm.ir.DictAttrs(attrs))
    found = append_of(turned, 0)
    assert found is not None
    assert [int(place) for place in appending(turned, found, NEW, 8).attrs["layout_free_buffers"]] == [0]


@pytest.mark.parametrize(
    "value",
    [
        lambda new, past, h, i, d: tirx.if_then_else(is_new(i), new[i - PAST, h, d], past[h, i, d] + 1),
        lambda new, past, h, i, d: tirx.if_then_else(is_new(i), new[i - PAST, h, d], past[HEADS - 1 - h, i, d]),
        lambda new, past, h, i, d: tirx.if_then_else(is_new(i), past[h, i - PAST, d], past[h, i, d]),
        lambda new, past, h, i, d: tirx.if_then_else(i >= PAST - 1, new[i - PAST, h, d], past[h, i, d]),
        lambda new, past, h, i, d: tirx.if_then_else(i < NEW, new[i, h, d], past[h, i - NEW, d]),
        lambda new, past, h, i, d: new[i % NEW, h, d] + past[h, i % PAST, d],
    ],
    ids=["computed", "other heads", "read twice", "fewer rows", "in front", "no choice"],
)
def test_what_is_no_append(value):
    assert append_of(joined(value), 1) is None


def test_a_summed_source_is_no_append():
    def value(new: Any, past: Any, h: Any, i: Any, d: Any) -> Any:
        k = te.reduce_axis((0, 2), "k")
        return te.sum(past[h, i % PAST, d] + new[k, h, d], axis=k)

    assert append_of(joined(value), 1) is None


def padded(out: tuple[int, ...], value: Callable[..., Any]) -> tirx.PrimFunc:
    return function((HEADS, PAST, WIDTH), out=out, value=value)


def zero() -> Any:
    return tirx.const(0.0, "float32")


def test_zeros_behind_the_rows_are_padding():
    func = padded((HEADS, 8, WIDTH), lambda p, h, i, d: tirx.if_then_else(i < PAST, p[h, i, d], zero()))
    assert padded_rows(func, 1) == 8
    assert padded_rows(func, 0) is None
    copy = padded((HEADS, PAST, WIDTH), lambda p, h, i, d: p[h, i, d])
    assert padded_rows(copy, 1) == PAST, "where nothing is lacking"


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ((HEADS, 8, WIDTH), lambda p, h, i, d: tirx.if_then_else(i < PAST, p[h, i, d], tirx.const(-1.0, "float32"))),
        ((HEADS, 8, WIDTH), lambda p, h, i, d: tirx.if_then_else(i < PAST - 1, p[h, i, d], zero())),
        ((HEADS, 8, WIDTH), lambda p, h, i, d: tirx.if_then_else(i >= 5, p[h, i - 5, d], zero())),
        ((HEADS, 8, WIDTH), lambda p, h, i, d: tirx.if_then_else(i < PAST, p[h, i, d] * 2, zero())),
        ((HEADS, 8, 8), lambda p, h, i, d: tirx.if_then_else(i < PAST, p[h, i, d], zero())),
    ],
    ids=["another value", "fewer rows", "in front", "computed", "columns, too"],
)
def test_what_is_no_padding(shape, value):
    assert padded_rows(padded(shape, value), 1) is None


def test_rows_are_read_through_strides():
    func = function((HEADS, PAST, WIDTH), out=(PAST, HEADS, WIDTH), value=lambda p, i, h, d: p[h, i, d] + 1)
    array, found = random(HEADS, 16, WIDTH), filled(0, PAST, HEADS, WIDTH)
    run(reading(func, [(0, 1, 16)]), array, found)
    np.testing.assert_array_equal(found, array[:, :PAST].transpose(1, 0, 2) + 1)
