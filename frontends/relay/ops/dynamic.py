"""Operators whose sizes are arguments instead of attributes: constants here, and then the operators that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from subtune.frontends.onnx.ops.node import Expr, array_const, dtype, rank
from subtune.frontends.relay.ops import padding, resize
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.linear import matrix_product


def _constant(call: Call, index: int) -> np.ndarray:
    value = call.known(index)
    if value is None:
        call.refuse(f"has argument {index} that is not known at compile time, so that shapes are not")
    return value


def _as(call: Call, op: str, converter: Converter, args: tuple[Expr, ...], attrs: Mapping[str, Any]) -> Expr:
    return converter(Call(call.bb, op, args, {**call.attrs, **attrs}))


def dyn_resize2d(call: Call) -> Expr:
    roi = {"roi": _constant(call, 2).reshape(-1).tolist()} if len(call.args) > 2 else {}
    attrs = {"size": _constant(call, 1).reshape(-1).tolist(), **roi}
    return _as(call, "image.resize2d", resize.CONVERTERS["image.resize2d"], (call.x,), attrs)


def dyn_upsampling(op: str, names: tuple[str, ...]) -> Converter:
    def convert(call: Call) -> Expr:
        scales = {name: _constant(call, 1 + i).item() for i, name in enumerate(names)}
        return _as(call, op, resize.CONVERTERS[op], (call.x,), scales)

    return convert


def dyn_pad(call: Call) -> Expr:
    widths = _constant(call, 1).reshape(rank(call.x), 2).tolist()
    return _as(call, "nn.pad", padding.pad, (call.x, *call.args[2:]), {"pad_width": widths})


def sparse_dense(call: Call) -> Expr:
    """x @ w.T with w sparse by rows, or by blocks of rows; the constant w is filled up."""
    if call.attr("sparse_lhs", False):
        call.refuse("has sparse data")
    values, indices, starts = (_constant(call, i) for i in (1, 2, 3))
    tall, wide = values.shape[1:] if values.ndim == 3 else (1, 1)
    features = call.x.ty.shape.values[-1]
    dense = np.zeros((len(starts) - 1, tall, int(features) // wide, wide), values.dtype)
    for row in range(len(starts) - 1):
        at = slice(int(starts[row]), int(starts[row + 1]))
        dense[row, :, indices[at]] = values[at].reshape(-1, tall, wide)
    weights = array_const(dense.reshape(-1, int(features)).astype(dtype(call.x)))
    return matrix_product(call, call.x, weights, False, True)


CONVERTERS: dict[str, Converter] = {
    "dyn.image.resize2d": dyn_resize2d,
    "dyn.nn.upsampling": dyn_upsampling("nn.upsampling", ("scale_h", "scale_w")),
    "dyn.nn.upsampling3d": dyn_upsampling("nn.upsampling3d", ("scale_d", "scale_h", "scale_w")),
    "dyn.nn.pad": dyn_pad,
    "nn.sparse_dense": sparse_dense,
}
