"""Outputs looked at on another machine: one that is as near to what is right as it has to be is not sent.

near(array, start, right, limit)   how many float32 of `array`, from its byte `start` on, are within `limit` of those of
                                   `right`
take(array, start, some)           some = the bytes of `array` from `start` on
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from tvm import tirx

from subtune.backends.cpu.lowering.sharing import KEEP_ON_STACK

_BYTES = 4
"""Of a float32, the lowest first: on every machine that TVM's RPC serves."""


def near() -> Any:
    """What is NaN is not near."""
    array, right = _array("array"), _array("right")
    start, limit, i = tirx.Var("start", "int64"), tirx.Var("limit", "float64"), tirx.Var("i", "int64")
    count = tirx.decl_buffer([1], "int64", "count")
    error = tirx.abs(_float32(array, start + i * _number(_BYTES)) - _float32(right, i * _number(_BYTES)))
    is_near = error <= tirx.Cast("float32", limit)
    more = tirx.BufferStore(count, tirx.BufferLoad(count, [0]) + tirx.Cast("int64", is_near), [0])
    floats = tirx.floordiv(right.shape[0], _number(_BYTES))
    loop = tirx.For(i, _number(0), floats, tirx.ForKind.SERIAL, more)
    steps = [
        tirx.AllocBuffer(count, {KEEP_ON_STACK: tirx.IntImm("int32", 1)}),
        tirx.BufferStore(count, _number(0), [0]),
        loop,
    ]
    body = tirx.SeqStmt([*steps, tirx.Return(tirx.BufferLoad(count, [0]))])
    return tirx.PrimFunc([array, start, right, limit], body).with_attr("global_symbol", "near")


def take() -> Any:
    array, some = _array("array"), _array("some")
    start, i = tirx.Var("start", "int64"), tirx.Var("i", "int64")
    store = tirx.BufferStore(some, tirx.BufferLoad(array, [start + i]), [i])
    body = tirx.For(i, _number(0), some.shape[0], tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([array, start, some], body).with_attr("global_symbol", "take")


def _float32(array: Any, at: Any) -> Any:
    """Of an array of bytes."""
    parts = [tirx.Cast("uint32", tirx.BufferLoad(array, [at + _number(byte)])) for byte in range(_BYTES)]
    placed = [tirx.shift_left(part, tirx.const(8 * byte, "uint32")) for byte, part in enumerate(parts)]
    return tirx.reinterpret("float32", reduce(tirx.bitwise_or, placed))


def _array(name: str) -> Any:
    return tirx.decl_buffer([tirx.Var(f"{name}_bytes", "int64")], "uint8", name)


def _number(value: int) -> Any:
    return tirx.const(value, "int64")
