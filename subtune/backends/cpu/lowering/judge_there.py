"""Outputs looked at on another machine: one that is as near to what is right as it has to be is not sent.

near(array, start, right, limit)   how many float32 of `array`, from its byte `start` on, are within `limit` of those of
                                   `right`
compare(array, other, begin, end)  how many bytes of the two differ before `begin` and from `end` on
take(array, start, some)           some = the bytes of `array` from `start` on
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from tvm import tirx

from subtune.backends.cpu.lowering.sharing import KEEP_ON_STACK
from subtune.tir.statements import byte_array, integer

_BYTES = 4
"""Of a float32, the lowest first: on every machine that TVM's RPC serves."""


def near() -> Any:
    """What is NaN is not near."""
    array, right = byte_array("array"), byte_array("right")
    start, limit, i = tirx.Var("start", "int64"), tirx.Var("limit", "float64"), tirx.Var("i", "int64")
    error = tirx.abs(_float32(array, start + i * integer(_BYTES)) - _float32(right, i * integer(_BYTES)))
    floats = tirx.floordiv(right.shape[0], integer(_BYTES))
    body = _counted([(i, integer(0), floats, error <= tirx.Cast("float32", limit))])
    return tirx.PrimFunc([array, start, right, limit], body).with_attr("global_symbol", "near")


def compare() -> Any:
    array, other = byte_array("array"), byte_array("other")
    begin, end, i, j = (tirx.Var(name, "int64") for name in ("begin", "end", "i", "j"))
    parts = [(i, integer(0), begin), (j, end, array.shape[0])]
    body = _counted([(*part, tirx.BufferLoad(array, [part[0]]) != tirx.BufferLoad(other, [part[0]])) for part in parts])
    return tirx.PrimFunc([array, other, begin, end], body).with_attr("global_symbol", "compare")


def _counted(loops: Sequence[tuple[Any, Any, Any, Any]]) -> Any:
    """Returns how often a condition holds, of variables that go from a begin to an end each."""
    count = tirx.decl_buffer([1], "int64", "count")
    steps = [
        tirx.AllocBuffer(count, {KEEP_ON_STACK: tirx.IntImm("int32", 1)}),
        tirx.BufferStore(count, integer(0), [0]),
    ]
    for variable, begin, end, condition in loops:
        more = tirx.BufferStore(count, tirx.BufferLoad(count, [0]) + tirx.Cast("int64", condition), [0])
        steps.append(tirx.For(variable, begin, end - begin, tirx.ForKind.SERIAL, more))
    return tirx.SeqStmt([*steps, tirx.Return(tirx.BufferLoad(count, [0]))])


def take() -> Any:
    array, some = byte_array("array"), byte_array("some")
    start, i = tirx.Var("start", "int64"), tirx.Var("i", "int64")
    store = tirx.BufferStore(some, tirx.BufferLoad(array, [start + i]), [i])
    body = tirx.For(i, integer(0), some.shape[0], tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([array, start, some], body).with_attr("global_symbol", "take")


def _float32(array: Any, at: Any) -> Any:
    """Of an array of bytes."""
    parts = [tirx.Cast("uint32", tirx.BufferLoad(array, [at + integer(byte)])) for byte in range(_BYTES)]
    placed = [tirx.shift_left(part, tirx.const(8 * byte, "uint32")) for byte, part in enumerate(parts)]
    return tirx.reinterpret("float32", reduce(tirx.bitwise_or, placed))
