"""Operators that make tensors or mask them: constants, ranges, diagonals, dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.narrow import held, holdable
from subtune.frontends.onnx.ops.node import (
    Converter,
    Expr,
    Node,
    array_const,
    const,
    dtype,
    dtype_name,
    known_array,
    shape,
)
from subtune.frontends.onnx.weights import read_tensor


def constant(node: Node) -> Any:
    for name, value in node.attrs.items():
        if name == "value":
            holdable(value.data_type)
            return held(read_tensor(value))
        if name in ("value_float", "value_floats"):
            return const(value, "float32")
        if name in ("value_int", "value_ints"):
            return const(value, "int64")
    node.refuse("holds a string or a sparse tensor, which is not supported")


_LARGEST_MASK_BYTES = 16 << 20
"""A triangle of known values is a constant up to 2048 x 2048 in float32; a larger one is rather computed than read."""


def trilu(node: Node) -> Expr:
    x = node.x
    k = 0 if node.get(1) is None else node.ints(1, "its diagonal")[0]
    upper = node.attr("upper", 1)
    known = _known_values(node, x)
    if known is not None and known.nbytes <= _LARGEST_MASK_BYTES:
        return array_const((np.triu if upper else np.tril)(known, k))

    def whole(t: Any) -> Any:
        def one(*i: Any) -> tirx.Select:
            row, column = i[-2], i[-1]
            kept = (column - row >= k) if upper else (column - row <= k)
            return tirx.Select(kept, t(*i), tirx.const(0, t.dtype))

        return te.compute(t.shape, one, name="trilu")

    return node.te(whole, x)


def _known_values(node: Node, x: Expr) -> np.ndarray | None:
    """The value of `x` if it is a constant, or one number everywhere; else None."""
    known = node.known(0)
    made = node.bb.lookup_binding(x) if known is None and isinstance(x, relax.Var) else None
    if not isinstance(made, tvm.ir.Call) or made.op.name not in ("relax.full", "relax.broadcast_to"):
        return known
    fill = known_array(made.args[1] if made.op.name == "relax.full" else made.args[0], node.arrays)
    return np.broadcast_to(fill, shape(x)).astype(fill.dtype) if fill is not None and fill.size == 1 else None


def eye_like(node: Node) -> Expr:
    rows, columns = shape(node.x)
    to = dtype_name(node.attr("dtype")) if node.attr("dtype") else dtype(node.x)
    return const(np.eye(rows, columns, k=node.attr("k", 0)), to)


def constant_of_shape(node: Node) -> Expr:
    dims = node.ints(0, "its shape")
    value = node.attr("value")
    if value is None:
        return relax.op.full(tuple(dims), const(0, "float32"), "float32")
    to = dtype_name(value.data_type)
    fill = read_tensor(value).reshape(-1)[0]
    if 0 in dims:
        return const(np.empty(dims), to)
    return relax.op.full(tuple(dims), const(fill, to), to)


def range_(node: Node) -> Expr:
    start, limit, delta = (node.array(i, "its bounds").reshape(()) for i in range(3))
    return array_const(np.arange(start.item(), limit.item(), delta.item()).astype(start.dtype))


def dropout(node: Node) -> tuple[Expr, ...]:
    """Inference: the identity and an all-true mask. Training is refused unless nothing is dropped."""
    x = node.x
    if node.opset >= 12:
        training = node.get(2) is not None and bool(node.array(2, "its training_mode").reshape(()))
        if training and (node.get(1) is None or float(node.array(1, "its ratio").reshape(())) != 0.0):
            node.refuse("drops at random (training_mode is true)")
    elif node.opset < 7 and not node.attr("is_test", 0):
        node.refuse("drops at random (is_test is 0)")
    if not node.wants(1):
        return (x, None) if len(node.wanted) > 1 else (x,)
    mask_dtype = "bool" if node.opset >= 10 else dtype(x)
    return x, relax.op.full(shape(x), const(1, mask_dtype), mask_dtype)


CONVERTERS: dict[str, Converter] = {
    "Constant": constant,
    "Trilu": trilu,
    "EyeLike": eye_like,
    "ConstantOfShape": constant_of_shape,
    "Range": range_,
    "Dropout": dropout,
}
