"""Whether a kernel stays within memory of its own, and an exact one within its outputs, at an instance.

Tiles of whole vectors overlap where an extent is no multiple of a vector: the last one begins at `extent - lanes`. Of
an extent below a vector that is in front of the first element. And what is rounded up to whole tiles,
`14*ceil(49*n/14)`, is `49*n + 7` at every odd number: a loop of so many turns goes too far at an even one. What is
written there into an output is found when results are checked; in a buffer of the kernel's own nobody looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym.analyzer import Analyzer
from tvm.tirx import PrimFunc

from subtune.tir.substitute import substitute
from subtune.tir.walk import found


def writes_before_start(func: PrimFunc) -> bool:
    """Whether a lowered kernel, at one instance, stores into a buffer that it allocates from a negative place on."""
    own: list[Any] = []
    negative: list[Any] = []
    places: list[Any] = []

    def begins_before(value: Any) -> bool:
        seen: list[bool] = []
        tvm_ffi.structural_walk(
            value,
            [
                (tirx.Min, lambda one: seen.append(_is_negative(one.a) or _is_negative(one.b))),
                (ir.Var, lambda var: seen.append(any(var.same_as(other) for other in negative))),
            ],
        )
        return any(seen)

    def bound(statement: Any) -> None:
        if begins_before(statement.value):
            negative.append(statement.var)

    def stored(statement: Any) -> None:
        if any(statement.buffer.same_as(buffer) for buffer in own):
            places.extend(index for index in statement.indices if begins_before(index))

    callbacks = [
        (tirx.AllocBuffer, lambda statement: own.append(statement.buffer)),
        (tirx.Bind, bound),
        (tirx.BufferStore, stored),
    ]
    tvm_ffi.structural_walk(func.body, callbacks, order="pre")
    return bool(places)


def writes_past_end(func: PrimFunc, outputs: int = 0) -> bool:
    """Whether a lowered kernel, at one instance, stores past the end of a buffer that it allocates, in the last turn of
    all loops; of what is in registers nothing is asked.

    Args:
        outputs: so many parameters, the last ones, are to be written to no further than they go, either.
    """
    owned = [one.buffer for one in found(func.body, tirx.AllocBuffer)]
    written = list(func.params)[len(func.params) - outputs :]
    nbytes = {buffer: _nbytes(buffer) for buffer in (*owned, *written) if _is_known(buffer)}
    for view in found(func.body, tirx.DeclBuffer):  # what a kernel needs at different times shares memory
        for owner in found(view.data, ir.Var):
            if owner in nbytes:
                nbytes[view.buffer] = nbytes[owner]
    return _stores_past(func.body, {}, {buffer: size // _itemsize(buffer) for buffer, size in nbytes.items()})


def _is_known(buffer: Any) -> bool:
    return buffer.scope() == "global" and all(isinstance(dim, tirx.IntImm) for dim in buffer.shape)


def _nbytes(buffer: Any) -> int:
    return prod(int(dim) for dim in buffer.shape) * _itemsize(buffer)


def _itemsize(buffer: Any) -> int:
    return int(tvm_ffi.dtype(str(buffer.dtype)).itemsize)


def _stores_past(statement: Any, values: dict[Any, Any], sizes: dict[Any, int]) -> bool:
    """`values`: of the variables around it, in the last turn."""
    if isinstance(statement, tirx.SeqStmt):
        return any(_stores_past(one, values, sizes) for one in statement.seq)
    if isinstance(statement, tirx.For):
        values[statement.loop_var] = _known(statement.min + statement.extent - 1, values)
        return _stores_past(statement.body, values, sizes)
    if isinstance(statement, tirx.Bind):
        values[statement.var] = _known(statement.value, values)
        return False
    if isinstance(statement, tirx.IfThenElse):
        condition = _known(statement.condition, values)
        cases = [statement.then_case, statement.else_case]
        if isinstance(condition, tirx.IntImm):
            cases = cases[:1] if int(condition) else cases[1:]
        return any(_stores_past(one, values, sizes) for one in cases if one is not None)
    if isinstance(statement, tirx.BufferStore):
        return statement.buffer in sizes and _end(statement.indices, values) > sizes[statement.buffer]
    body = getattr(statement, "body", None)
    return body is not None and _stores_past(body, values, sizes)


def _end(indices: Any, values: Mapping[Any, Any]) -> int:
    """Behind the last element that is stored; 0 where that is not known."""
    if len(indices) != 1:
        return 0
    (index,) = indices
    last = index.base + (index.lanes - 1) * index.stride if isinstance(index, tirx.Ramp) else index
    place = _known(last, values)
    return int(place) + 1 if isinstance(place, tirx.IntImm) else 0


def _known(value: Any, values: Mapping[Any, Any]) -> Any:
    return Analyzer().simplify(substitute(value, values))


def _is_negative(value: Any) -> bool:
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, tirx.IntImm) and int(value) < 0
