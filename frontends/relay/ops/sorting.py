"""Operators that order elements, and search in what is ordered."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, array_const, const, dtype, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter, Value


def sort(call: Call) -> Expr:
    axis = call.axis(rank(call.x), -1)
    return relax.op.sort(call.x, axis=axis, descending=not call.attr("is_ascend", True))


def argsort(call: Call) -> Expr:
    x, to = call.x, call.dtype("int32")
    narrow = to if to in ("int32", "int64") else "int32"
    descending = not call.attr("is_ascend", True)
    found = call.emit(relax.op.argsort(x, axis=call.axis(rank(x), -1), descending=descending, dtype=narrow))
    return call.cast(found, to)


def _top(call: Call, k: int) -> Value:
    """The k first in order (all where k < 1): values, indices or both."""
    x, to = call.x, call.dtype("int32")
    axis = call.axis(rank(x), -1)
    k = shape(x)[axis] if k < 1 else k
    kind = call.attr("ret_type", "both")
    if kind not in ("both", "values", "indices"):
        call.refuse(f"has ret_type {kind!r}")
    if k > shape(x)[axis]:
        call.refuse(f"takes {k} of {shape(x)[axis]}")
    values, indices = call.onnx(
        "TopK", x, const([k], "int64"), outputs=2, axis=axis, largest=int(not call.attr("is_ascend", False))
    )
    if kind == "values":
        return values
    indices = call.cast(indices, to)
    return (values, indices) if kind == "both" else indices


def topk(call: Call) -> Value:
    return _top(call, call.one_int("k", 1))


def dyn_topk(call: Call) -> Value:
    return _top(call, call.known_ints(1, "its k")[0])


def searchsorted(call: Call) -> Expr:
    """How many entries of the ordered innermost axis come before each value; `right` counts equal ones too."""
    ordered, values = call.arg(0), call.arg(1)
    to, right = call.dtype("int32"), bool(call.attr("right", False))
    if dtype(ordered) != dtype(values):
        call.refuse(f"mixes {dtype(ordered)} and {dtype(values)}")
    shared = rank(ordered) > 1
    if shared and shape(ordered)[:-1] != shape(values)[:-1]:
        call.refuse(f"searches {list(shape(ordered))} for {list(shape(values))}")

    def whole(t: Any, v: Any) -> Any:
        k = te.reduce_axis((0, shape(ordered)[-1]), name="k")

        def one(*i: Any) -> Any:
            entry, value = t(*(i[:-1] if shared else ()), k), v(*i)
            before = entry <= value if right else entry < value
            return te.sum(tirx.Select(before, tirx.const(1, to), tirx.const(0, to)), axis=k)

        return te.compute(shape(values), one, name="searchsorted")

    return call.te(whole, ordered, values)


def argwhere(call: Call) -> Expr:
    """How many there are is a shape: only of a constant."""
    value = call.known(0)
    if value is None:
        call.refuse("makes a shape of values that are known at run time only")
    return array_const(np.argwhere(value).astype(np.int32))


CONVERTERS: dict[str, Converter] = {
    "sort": sort,
    "argsort": argsort,
    "topk": topk,
    "dyn.topk": dyn_topk,
    "searchsorted": searchsorted,
    "argwhere": argwhere,
}
