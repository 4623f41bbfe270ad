"""Constants packed on another machine: what is sent once is laid out there as every candidate wants it.

packN(source, array, start, numbers)   array from its byte `start` on = source, packed, in elements of N bytes
put(some, array, start)                array from its byte `start` on = some
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from subtune.core.kernel import Packing
from subtune.tir.statements import byte_array, integer

_PARTS = 10
"""Dims of a layout at most."""
WIDTHS = (1, 2, 4, 8)
"""Bytes of an element."""


def padded_shape(packing: Packing) -> tuple[int, ...]:
    """Of the constant that is laid out so: all its parts are whole."""
    return tuple(map(prod, packing.split))


def numbers_of(packing: Packing) -> np.ndarray | None:
    """What `packN` must know: the extents of the layout's dims, and how far apart in the padded constant two neighbours
    in each are. None where it has too many dims.
    """
    if len(packing.order) > _PARTS:
        return None
    parts = [part for dim in packing.split for part in dim]
    strides = list(accumulate(reversed(parts[1:]), lambda one, other: one * other, initial=1))[::-1]
    missing = _PARTS - len(parts)
    ordered = [[1] * missing + [of[at] for at in packing.order] for of in (parts, strides)]
    return np.array(ordered, np.int64).reshape(-1)


def pack(width: int) -> Any:
    source, array, start = byte_array("source"), byte_array("array"), tirx.Var("start", "int64")
    numbers = tirx.decl_buffer([2 * _PARTS], "int64", "numbers")
    outer, j = tirx.Var("outer", "int64"), tirx.Var("j", "int64")
    extents, strides = ([numbers[integer(at + i)] for i in range(_PARTS)] for at in (0, _PARTS))
    binds, rest, base = [], outer, tirx.Var("base", "int64")
    terms = []
    for part in reversed(range(_PARTS - 1)):
        place, left = tirx.Var(f"place{part}", "int64"), tirx.Var(f"left{part}", "int64")
        binds += [tirx.Bind(left, tirx.truncdiv(rest, extents[part])), tirx.Bind(place, rest - left * extents[part])]
        terms.append(place * strides[part])
        rest = left
    binds.append(tirx.Bind(base, reduce(lambda one, other: one + other, terms)))
    source_at = (base + j * strides[-1]) * integer(width)
    array_at = start + (outer * extents[-1] + j) * integer(width)
    stores = [
        tirx.BufferStore(array, tirx.BufferLoad(source, [source_at + integer(byte)]), [array_at + integer(byte)])
        for byte in range(width)
    ]
    loop = tirx.For(j, integer(0), extents[-1], tirx.ForKind.SERIAL, tirx.stmt_seq(*stores))
    count = reduce(lambda one, other: one * other, extents[:-1])
    body = tirx.For(outer, integer(0), count, tirx.ForKind.SERIAL, tirx.SeqStmt([*binds, loop]))
    return tirx.PrimFunc([source, array, start, numbers], body).with_attr("global_symbol", f"pack{width}")


def put() -> Any:
    some, array, start, i = byte_array("some"), byte_array("array"), tirx.Var("start", "int64"), tirx.Var("i", "int64")
    store = tirx.BufferStore(array, tirx.BufferLoad(some, [i]), [start + i])
    body = tirx.For(i, integer(0), some.shape[0], tirx.ForKind.SERIAL, store)
    return tirx.PrimFunc([some, array, start], body).with_attr("global_symbol", "put")
