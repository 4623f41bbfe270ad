"""Outputs looked at on another machine: one that is as near to what is right as it has to be is not sent.

near(array, start, right, limit)   how many float32 of `array`, from its byte `start` on, are within `limit` of those of
                                   `right`
around(array, other, begin, end)   how many bytes of the two differ before `begin` and from `end` on
take(array, start, some)           some = the bytes of `array` from `start` on
"""

from __future__ import annotations

from collections.abc import Sequence
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
    error = tirx.abs(_float32(array, start + i * _number(_BYTES)) - _float32(right, i * _number(_BYTES)))
    floats = tirx.floordiv(right.shape[0], _number(_BYTES))
    body = _counted([(i, _number(0), floats, error <= tirx.Cast("float32", limit))])
    return tirx.PrimFunc([array, start, right, limit], body).with_attr("global_symbol", "near")


def around() -> Any:
    array, other = _array("array"), _array("other")
    begin, end, i, j = (tirx.Var(name, "int64") for name in ("begin", "end", "i", "j"))
    parts = [(i, _number(0), begin), (j, end, array.shape[0])]
    body = _counted([(*part, tirx.BufferLoad(array, [part[0]]) != tirx.BufferLoad(other, [part[0]])) for part in parts])
    return tirx.PrimFunc([array, other, begin, end], body).with_attr("global_symbol", "around")


def _counted(loops: Sequence[tuple[Any, Any, Any, Any]]) -> Any:
    """Returns how often a condition holds, of variables that go from a begin to an end each."""
    count = tirx.decl_buffer([1], "int64", "count")
    steps = [
        tirx.AllocBuffer(count, {KEEP_ON_STACK: tirx.IntImm("int32", 1)}),
        tirx.BufferStore(count, _number(0), [0]),
    ]
    for variable, begin, end, condition in loops:
        more = tirx.BufferStore(count, tirx.BufferLoad(count, [0]) + tirx.Cast("int64", condition), [0])
        steps.append(tirx.For(variable, begin, end - begin, tirx.ForKind.SERIAL, more))
    return tirx.SeqStmt([*steps, tirx.Return(tirx.BufferLoad(count, [0]))])


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
