"""Sorts and running sums as sums over pairs of elements, for models of many shapes.

    argsort(x)[k] = sum over i of i, where rank(i) = k        rank(i) = sum over j of 1, where x[j] comes before x[i]
    cumsum(x)[i] = sum over j of x[j], where j <= i

TVM's own are loops that no schedule touches and calls into its runtime, each for one shape. Of rows that are not long
pairs are few, and sums over them are kernels as all others are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.ir import Call, TupleGetItem
from tvm.relax import op

from subtune.passes.exprs import Expr, dtype_of, make_const, op_name, positive_axis, shape_of
from subtune.passes.rewriter import Rules, Walk, rewrite

MOST_ELEMENTS = 4096
"""Of a row: beyond, pairs of them take longer than what they are counted for."""


def counted(mod: tvm.IRModule) -> tvm.IRModule:
    """Sorts, the largest elements and running sums of rows that are not long -> sums over pairs."""
    return rewrite(mod, COUNTED)


def _running_sum(walk: Walk, call: Call) -> Expr | None:
    x, shape = call.args[0], shape_of(call.args[0])
    if call.attrs.axis is None or shape is None or not shape:
        return None
    axis = positive_axis(call.attrs.axis, len(shape))
    extent = shape[axis]
    if not 0 < extent <= MOST_ELEMENTS or call.attrs.exclusive:
        return None
    rows = _turned(x, axis)
    if dtype_of(call) != dtype_of(x):
        rows = op.astype(rows, dtype_of(call))
    at = np.arange(extent, dtype=np.int32)
    is_before = op.less_equal(make_const(at[None, :]), make_const(at[:, None]))
    nothing = make_const(np.zeros((), dtype_of(call)))
    return _turned(op.sum(op.where(is_before, op.expand_dims(rows, -2), nothing), axis=-1), axis, len(shape))


def _sorted(what: str, walk: Walk, call: Call) -> Expr | None:
    """`argsort`, or what it puts in order."""
    order = _order(call.args[0], call.attrs.axis, bool(call.attrs.descending), None)
    if order is None:
        return None
    if what == "indices":
        return op.astype(order, dtype_of(call))
    return op.gather_elements(call.args[0], order, positive_axis(call.attrs.axis, len(shape_of(call) or ())))


def _largest(walk: Walk, call: Call) -> Expr | None:
    """`topk` of one result."""
    return None if call.attrs.ret_type == "both" else _of_largest(call, str(call.attrs.ret_type))


def _part_of_largest(walk: Walk, projection: TupleGetItem) -> Expr | None:
    """`topk(x)[i]`, where it has two results."""
    call = walk.definition(projection.tuple_value)
    if op_name(call) != "relax.topk" or call.attrs.ret_type != "both":
        return None
    return _of_largest(call, ("values", "indices")[int(projection.index)])


def _of_largest(call: Any, what: str) -> Expr | None:
    x, attrs = call.args[0], call.attrs
    order = _order(x, attrs.axis, bool(attrs.largest), int(attrs.k))
    if order is None or int(attrs.k) <= 0:
        return None
    if what == "indices":
        return op.astype(order, str(attrs.dtype))
    return op.gather_elements(x, order, positive_axis(attrs.axis, len(shape_of(x) or ())))


def _order(x: Expr, axis: int, is_descending: bool, count: int | None) -> Expr | None:
    """Where the first `count` elements of each row in order are, as int64; of equal ones the first comes first."""
    shape = shape_of(x)
    if not shape:
        return None
    axis = positive_axis(axis, len(shape))
    extent = shape[axis]
    if not 0 < extent <= MOST_ELEMENTS:
        return None
    rows = _turned(x, axis)
    of_other, own = op.expand_dims(rows, -2), op.expand_dims(rows, -1)
    at = np.arange(extent, dtype=np.int32)
    is_earlier = op.less(make_const(at[None, :]), make_const(at[:, None]))
    is_first = (op.greater if is_descending else op.less)(of_other, own)
    comes_before = op.logical_or(is_first, op.logical_and(op.equal(of_other, own), is_earlier))
    rank = op.sum(op.astype(comes_before, "int32"), axis=-1)
    places = make_const(at[:count, None])
    is_there = op.equal(op.expand_dims(rank, -2), places)
    found = op.sum(op.where(is_there, make_const(at.astype(np.int64)), make_const(np.zeros((), np.int64))), axis=-1)
    return _turned(found, axis, len(shape))


def _turned(x: Expr, axis: int, rank: int | None = None) -> Expr:
    """With `axis` as the last one; or, where the rank is given, with the last one as `axis` again."""
    count = rank if rank is not None else len(shape_of(x) or ())
    if axis == count - 1:
        return x
    to_last = [*(i for i in range(count) if i != axis), axis]
    return op.permute_dims(x, to_last if rank is None else [to_last.index(i) for i in range(count)])


COUNTED: Rules = {
    "relax.cumsum": (_running_sum,),
    "relax.sort": (partial(_sorted, "values"),),
    "relax.argsort": (partial(_sorted, "indices"),),
    "relax.topk": (_largest,),
    "tuple_get_item": (_part_of_largest,),
}
