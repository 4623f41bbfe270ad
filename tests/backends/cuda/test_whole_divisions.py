"""Remainders of rows bounded by the last one: the hardware's, where there is a row in every block."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.cuda.lowering.whole_divisions import whole_divisions

CORRECTION = ">> 31"


def of_images(divisor: int) -> Any:
    """A block for every 32 pixels of `n` images of 49."""

    @T.prim_func(private=True)
    def func(out: T.Buffer((32,), "int32"), n: T.int32):
        block = T.launch_thread("blockIdx.x", (n * 49 + 31) // 32)
        thread = T.launch_thread("threadIdx.x", 32)
        out[thread] = T.min(block * 32 + thread, n * 49 - 1) % divisor

    return func


def of_four_blocks(divisor: int) -> Any:
    """Four blocks, even of no image."""

    @T.prim_func(private=True)
    def func(out: T.Buffer((32,), "int32"), n: T.int32):
        block = T.launch_thread("blockIdx.x", 4)
        thread = T.launch_thread("threadIdx.x", 32)
        out[thread] = T.min(block * 32 + thread, n * 49 - 1) % divisor

    return func


def lowered(func: Any) -> str:
    """With TVM's corrections, on a GPU."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})
    mod = tirx.transform.BindTarget(target)(tvm.IRModule({"main": func}))
    return str(tirx.transform.LowerIntrin()(mod)["main"])


def divided(func: Any) -> Any:
    return whole_divisions(tvm.IRModule({"main": func}))["main"]


@pytest.mark.parametrize("divisor", [7, 49])
def test_where_a_block_has_a_row_nothing_is_corrected(divisor: int) -> None:
    assert CORRECTION in lowered(of_images(divisor)), "TVM cannot tell"
    assert CORRECTION not in lowered(divided(of_images(divisor)))


def test_where_there_may_be_no_row_it_is() -> None:
    assert CORRECTION in lowered(divided(of_four_blocks(7)))


def test_powers_of_two_stay_masks() -> None:
    func = of_images(8)
    assert tvm_ffi.structural_equal(divided(func), func)
    assert "& 7" in lowered(divided(func))
