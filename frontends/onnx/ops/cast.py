"""Conversions between dtypes."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import FLOATS, Converter, Expr, Node, const, dtype, dtype_name


def convert(node: Node, x: Expr, to: str) -> Expr:
    """`x` as dtype `to`: floats to integers truncate; anything but zero is true, NaN too."""
    source = dtype(x)
    if source == to:
        return x
    if to == "bool":
        differs = relax.op.not_equal(x, const(0, source))
        if source not in FLOATS:
            return differs
        wide = x if source in ("float32", "float64") else node.cast(x, "float32")
        return relax.op.logical_or(node.emit(differs), node.emit(relax.op.isnan(wide)))
    if source == "bool":
        return relax.op.astype(x, to)
    if source in FLOATS and to not in FLOATS:
        # Through int64, so that negative and too large values wrap as in C instead of being undefined.
        wide = x if source in ("float32", "float64") else node.cast(x, "float32")
        if to in ("int64", "uint64", "int32"):
            return relax.op.astype(wide, to)
        return node.cast(node.cast(wide, "int32"), to)
    if to == "bfloat16" and source != "float32":
        return relax.op.astype(node.cast(x, "float32"), to)
    if source == "bfloat16" and to != "float32":
        return relax.op.astype(node.cast(x, "float32"), to)
    return relax.op.astype(x, to)


def cast(node: Node) -> Expr:
    return convert(node, node.x, dtype_name(node.attr("to")))


def cast_like(node: Node) -> Expr:
    return convert(node, node.x, dtype(node.need(1)))


def bitcast(node: Node) -> Expr:
    """The same bits as another dtype of the same width."""
    x = node.x
    to = dtype_name(node.attr("to"))
    if "bool" in (to, dtype(x)) or _bits(to) != _bits(dtype(x)):
        node.refuse(f"reinterprets {dtype(x)} as {to}")

    def whole(t: Any) -> Any:
        return te.compute(t.shape, lambda *i: tirx.reinterpret(to, t(*i)), name="bitcast")

    return node.te(whole, x)


def _bits(name: str) -> int:
    from subtune.frontends.onnx.ops.node import numpy_dtype

    return numpy_dtype(name).itemsize * 8


CONVERTERS: dict[str, Converter] = {"Cast": cast, "CastLike": cast_like, "BitCast": bitcast}
