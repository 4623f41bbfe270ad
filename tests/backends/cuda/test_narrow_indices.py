"""Indices are counted in 32 bits where that is enough, and numbers of 64 bits that are data stay."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import te, tirx

from subtune.backends.cuda.lowering.narrow_indices import narrow_indices


def flat(rows: int, dtype: str, value: Any) -> tirx.PrimFunc:
    """`y[i, j] = value(x[i, j])` of `rows` by 64 elements: loops over flat buffers, sizes as a model has them."""
    shape = (tvm.tirx.const(rows, "int64"), tvm.tirx.const(64, "int64"))
    x = te.placeholder(shape, dtype, "x")
    y = te.compute(shape, lambda i, j: value(x[i, j]), "y")
    func = te.create_prim_func([x, y], index_dtype_override="int64")
    passes = [
        tvm.s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        tvm.s_tir.transform.ConvertBlocksToOpaque(),
        tvm.s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
    ]
    return tvm.ir.transform.Sequential(passes)(tvm.IRModule({"main": func}))["main"]


def narrowed(func: tirx.PrimFunc) -> str:
    """The loops as they are then; parameters keep their sizes."""
    body = str(narrow_indices(tvm.IRModule({"main": func}))["main"])
    return body[body.index("for ") :]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int32"])
def test_indices_are_narrow(dtype: str) -> None:
    func = flat(100, dtype, lambda x: x + x)
    assert "int64" in str(func)[str(func).index("for ") :]
    assert "int64" not in narrowed(func)


@pytest.mark.parametrize(
    ("rows", "dtype", "value"),
    [
        ((1 << 24) + 1, "int8", lambda x: x + x),
        (100, "int64", lambda x: x + x),
        (100, "int32", lambda x: (x.astype("int64") * tirx.const(3 << 32, "int64")).astype("float32")),
        (100, "float32", lambda x: x.astype("int64").astype("float32")),
    ],
    ids=["many elements", "of 64 bits", "a product of 64 bits", "a conversion on the way"],
)
def test_these_stay(rows: int, dtype: str, value: Any) -> None:
    func = flat(rows, dtype, value)
    assert narrow_indices(tvm.IRModule({"main": func}))["main"].same_as(func)
