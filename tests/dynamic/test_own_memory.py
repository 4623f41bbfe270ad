"""Kernels that leave memory of their own at some instance are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tvm.script import tirx as T

from subtune import backends
from subtune.backends import as_device
from subtune.backends.cpu.device import CPU
from subtune.core.candidate import Candidate
from subtune.core.kernel import NotApplicable
from subtune.dynamic.kernel import DynamicKernel, dynamic_kernel
from subtune.dynamic.own_memory import writes_past_end
from subtune.dynamic.workload import dynamic_workload
from tests.backends.workloads import batch_matmul, conv
from tests.dynamic.flat_kernels import of_rows

DEVICE = as_device(CPU("x86-64-v3", threads=1))


def test_a_right_factor_that_is_turned_in_vectors_along_what_is_summed():
    workload = of_rows(lambda k: batch_matmul(1, 3, 18, k, transposed=True))
    candidate = next(one for one in backends.candidates(workload.at((19,)), DEVICE, 8) if one.family == "contraction")
    by_least = {k: dynamic_kernel(replace(workload, least=(k,)), candidate, DEVICE) for k in (1, 7, 8, 9)}
    refused = {k for k, found in by_least.items() if isinstance(found, NotApplicable)}
    assert refused == {1, 7}, "vectors have eight elements"
    assert "in front of its own memory" in by_least[1].reason


def stores(turns: int, size: int, condition: bool = False) -> Any:
    """Rows of 14 in panels of 32, `turns` rows of them, into memory of its own."""

    @T.prim_func
    def func(out: T.Buffer((1,), "float32")) -> None:
        own = T.alloc_buffer((size,), "float32")
        for i, j in T.grid(turns, 32):
            at: T.let[T.int32] = i // 14 * 448 + i % 14 * 32
            if not condition or i < 98:
                own[at + j] = T.float32(0)
        out[0] = own[0]

    return func


def test_loops_that_go_past_the_end_of_own_memory() -> None:
    assert not writes_past_end(stores(98, 7 * 448))
    assert writes_past_end(stores(105, 7 * 448))
    assert not writes_past_end(stores(105, 8 * 448))
    assert not writes_past_end(stores(105, 7 * 448, condition=True)), "never in the last turns"


def test_loops_that_go_past_the_end_of_an_output() -> None:
    @T.prim_func
    def func(x: T.Buffer((9,), "float32"), out: T.Buffer((8,), "float32")) -> None:
        for i in range(9):
            out[i] = x[i]

    assert writes_past_end(func, outputs=1)
    assert not writes_past_end(func), "there may be rows behind the last one"


def test_what_is_stored_where_a_condition_does_not_hold() -> None:
    @T.prim_func
    def func(out: T.Buffer((1,), "float32")) -> None:
        own = T.alloc_buffer((8,), "float32")
        for i in range(9):
            if i < 8:
                own[0] = T.float32(0)
            else:
                own[i] = T.float32(0)
        out[0] = own[0]

    assert writes_past_end(func)


@pytest.mark.parametrize("mr", [3, 8, 10])
@pytest.mark.parametrize("shares", [False, True])
def test_tiles_of_any_height_serve_any_number_of_images(mr: int, shares: bool) -> None:
    """Of four tiles an image: rounded up, that is the same as added to at all odd numbers."""
    samples = [{"n": n} for n in (11, 13, 17, 19)]
    found = dynamic_workload([conv(8, 16, 32, 3, batch=one["n"]) for one in samples], samples, {"n": 8}, least={"n": 1})
    assert not isinstance(found, NotApplicable)
    candidate = Candidate.make("winograd", m=4, mr=mr, nr=16, fuse=False, shares=shares)
    kernel = dynamic_kernel(found, candidate, as_device(CPU("x86-64-v3", threads=2)))
    assert isinstance(kernel, DynamicKernel), kernel.reason
    for n in range(1, 9):
        numbers = dict(zip(kernel.names(found), kernel.numbers((n,)), strict=True))
        assert not writes_past_end(kernel.template.at(numbers))
