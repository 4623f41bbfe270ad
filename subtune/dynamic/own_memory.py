"""Whether a kernel stays within memory of its own at the least instance.

Tiles of whole vectors overlap where an extent is no multiple of a vector: the last one begins at `extent - lanes`. Of
an extent below a vector that is in front of the first element. What is written there into an output is found when
results are checked; in a buffer of the kernel's own nobody looks.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc


def writes_before_start(func: PrimFunc) -> bool:
    """Whether a lowered kernel, at one instance, stores into a buffer that it allocates from a negative place on."""
    own: list[Any] = []
    negative: list[Any] = []
    found: list[Any] = []

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
            found.extend(index for index in statement.indices if begins_before(index))

    callbacks = [
        (tirx.AllocBuffer, lambda statement: own.append(statement.buffer)),
        (tirx.Bind, bound),
        (tirx.BufferStore, stored),
    ]
    tvm_ffi.structural_walk(func.body, callbacks, order="pre")
    return bool(found)


def _is_negative(value: Any) -> bool:
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, tirx.IntImm) and int(value) < 0
