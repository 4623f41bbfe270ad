"""Greedy suppression of overlapping boxes, one after the other: what no tensor expression says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from subtune.frontends.onnx.ops.node import Expr, dtype, shape
from subtune.frontends.relay.ops.call import Call
from subtune.frontends.relay.ops.movement import to_shape
from subtune.frontends.relay.ops.slices import Range, cut


@dataclass(frozen=True, slots=True)
class Overlap:
    """When a box goes that overlaps one that stays.

    Attributes:
        threshold: the intersection over union from which on it goes.
        beyond: only overlaps greater than the threshold count.
        side: what is added to every side's length, 1 where coordinates name pixels.
    """

    threshold: float
    beyond: bool = False
    side: float = 0.0


def greedy(
    call: Call, boxes: Expr, count: Expr, live: Expr, ids: Expr | None, overlap: Overlap, limit: int
) -> tuple[Expr, Expr]:
    """Walks each row's boxes, best first, and keeps those that overlap no kept one too much.

    Args:
        boxes: (rows, n, 4) of float32 or float64: left, top, right, bottom.
        count: (rows,) of int32: only so many boxes of each row are there.
        live: (rows, n) of int8: a box with 0 neither goes nor makes another go.
        ids: (rows, n): boxes of different ids do not see one another; None: all do.
        limit: how many are kept at most; all further ones go. Negative: no limit.

    Returns:
        stays (rows, n): 1 where a box is kept or not live; kept (rows, n): the positions of the kept ones in
        order, and -1 beyond. Both of int32, and of one tensor: a kernel must not have results that nobody reads.
    """
    rows, n, _ = shape(boxes)

    def row(ins: Sequence[Any], out: Any, i: Any) -> None:
        _row(ins, out, i, n, dtype(boxes), overlap, limit)

    tensors = [boxes, count, live, *([] if ids is None else [ids])]
    both = by_rows(call, row, tensors, ((rows, 2, n), "int32"))

    def half(which: int) -> Expr:
        return to_shape(call, cut(call, both, [Range(1, which, 1, 1)]), [rows, n])

    return half(0), half(1)


def by_rows(
    call: Call,
    row: Callable[[Sequence[Any], Any, Any], None],
    tensors: Sequence[Expr],
    result: tuple[tuple[int, ...], str],
) -> Expr:
    """Emits a kernel whose rows, along the result's first axis, are independent: schedulable on any target.

    Args:
        row: writes, with TVM's TIR builder, row `i` (int64) of the output's buffer from the inputs' buffers.
        result: shape and dtype.
    """

    def declared(dims: tuple[int, ...], kind: str, what: str) -> Any:
        return tirx.decl_buffer([_wide(d) for d in dims], kind, what, layout=None)

    def region(buffer: Any, *first: Any) -> Any:
        """All of the buffer, or of its row `first`."""
        rest = [slice(_wide(0), d) for d in buffer.shape[len(first) :]]
        return buffer[(*(slice(i, i + _wide(1)) for i in first), *rest)]

    name = call.op.rsplit(".", 1)[-1]
    ins = [declared(shape(t), dtype(t), f"in{i}") for i, t in enumerate(tensors)]
    out = declared(*result, "out")
    extent = _wide(result[0][0])
    i, loop = tirx.Var("vi", "int64"), tirx.Var("i", "int64")
    with IRBuilder() as ib, T.serial(0, 1):  # one statement round all
        row([T.buffer_proxy(b) for b in ins], T.buffer_proxy(out), i)
    body = ib.get()
    axis = tirx.IterVar(tvm.ir.Range(_wide(0), extent), i, tirx.IterVar.DataPar)
    block = SBlock([axis], [region(b) for b in ins], [region(out, i)], name, body)
    each = tirx.For(loop, _wide(0), extent, tirx.ForKind.PARALLEL, SBlockRealize([loop], True, block))
    root = SBlockRealize([], True, SBlock([], [], [], "root", each))
    func = tirx.PrimFunc([*ins, out], root).with_attr({"s_tir": True, "tirx.noalias": True})
    return call.emit(relax.call_tir(call.bb.add_func(func, name), list(tensors), relax.TensorType(*result)))


def _wide(value: int) -> Any:
    return tirx.IntImm("int64", value)


def span(extent: Any) -> Any:
    """A loop of 64-bit positions."""
    return T.serial(_wide(0), extent if not isinstance(extent, int) else _wide(extent))


def _row(ins: Sequence[Any], out: Any, i: Any, n: int, kind: str, overlap: Overlap, limit: int) -> None:
    boxes, count, live, *others = ins

    def c(value: float) -> Any:
        return tirx.const(value, kind)

    def side(a: Any, axis: int) -> Any:
        return boxes[i, a, axis + 2] - boxes[i, a, axis] + c(overlap.side)

    def shared(a: Any, b: Any, axis: int) -> Any:
        low = tirx.max(boxes[i, a, axis], boxes[i, b, axis])
        high = tirx.min(boxes[i, a, axis + 2], boxes[i, b, axis + 2])
        return tirx.max(c(0), high - low + c(overlap.side))

    def too_much(a: Any, b: Any) -> Any:
        common = shared(a, b, 0) * shared(a, b, 1)
        union = side(a, 0) * side(a, 1) + side(b, 0) * side(b, 1) - common
        ratio = tirx.Select(union <= c(0), c(0), common / union)
        over = ratio > c(overlap.threshold) if overlap.beyond else ratio >= c(overlap.threshold)
        return tirx.all(over, others[0][i, a] == others[0][i, b]) if others else over

    found = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
    goes = T.buffer_proxy(T.alloc_buffer((1,), "int32", scope="local"))
    found[0] = T.int32(0)
    with span(n) as j:
        out[i, 0, j] = T.int32(0)
        out[i, 1, j] = T.int32(-1)
    with span(n) as j, T.If(j < count[i].astype("int64")), T.Then():
        full = found[0] >= limit if limit >= 0 else tirx.const(False, "bool")
        goes[0] = tirx.Select(full, T.int32(1), T.int32(0))
        with T.If(tirx.all(goes[0] == 0, live[i, j] != tirx.const(0, "int8"))), T.Then():
            with (
                span(found[0].astype("int64")) as k,
                T.If(goes[0] == 0),
                T.Then(),
                T.If(too_much(within(out[i, 1, k].astype("int64"), n), j)),
                T.Then(),
            ):
                goes[0] = T.int32(1)
            with T.If(goes[0] == 0), T.Then():
                out[i, 1, found[0].astype("int64")] = j.astype("int32")
                found[0] = found[0] + 1
        out[i, 0, j] = 1 - goes[0]


def first_of(call: Call, flags: Expr) -> tuple[Expr, Expr]:
    """Where the flags (rows, n) of 0 and 1 that are set stand, in order, before the others; and their number (rows,).

    Both of int32.
    """
    rows, n = shape(flags)

    def keys(t: Any) -> Any:
        def one(i: Any, j: Any) -> Any:
            unset = t(i, j) == tirx.const(0, dtype(flags))
            return (j + tirx.Select(unset, n, 0)).astype("int32")

        return te.compute((rows, n), one, name="keys")

    order = call.emit(relax.op.argsort(call.te(keys, flags, name="keys"), axis=1, dtype="int32"))
    return order, call.emit(relax.op.sum(call.cast(flags, "int32"), axis=[1]))


def rows_at(call: Call, data: Expr, order: Expr, count: Expr, fill: float) -> Expr:
    """data (rows, n, …) in the given order; `fill` from `count` on."""
    dims = (*shape(order), *shape(data)[2:])

    def whole(t: Any, at: Any, m: Any) -> Any:
        def one(i: Any, j: Any, *rest: Any) -> Any:
            there = j.astype("int32") < m(i)
            value = t(i, within(at(i, j), shape(data)[1]), *rest)
            return tirx.if_then_else(there, value, tirx.const(fill, dtype(data)))

        return te.compute(dims, one, name="rows")

    return call.te(whole, data, order, count, name="rows")


def within(index: Any, extent: int) -> Any:
    """An index that reads no other memory, whatever a kernel is tried on."""
    return tirx.max(tirx.min(index, extent - 1), 0)
