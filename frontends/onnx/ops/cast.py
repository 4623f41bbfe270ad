"""Conversions between dtypes, narrow ones included."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from subtune.core.numerics import FLOAT8
from subtune.frontends.onnx.ops.narrow import CARRIERS, INTEGERS, Narrow, in_float32
from subtune.frontends.onnx.ops.node import FLOATS, Converter, Expr, Node, const, dtype, dtype_name, element_name
from subtune.frontends.onnx.ops.small_floats import rounded


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


def to_narrow(node: Node, x: Expr, to: str) -> Narrow:
    """Integers lose their higher bits; floats are rounded to the nearest, as the attribute `saturate` says.

    What is no float32 is made one before it is rounded.
    """
    if to in INTEGERS:
        return Narrow(_low_bits(node, convert(node, x, "int32"), to), to)
    saturate = bool(node.attr("saturate", 1))
    wide = node.emit(convert(node, x, "float32"))

    def whole(t: Any) -> Any:
        return te.compute(t.shape, lambda *i: rounded(t(*i), to, saturate), name="round_to_narrow")

    return Narrow(node.te(whole, wide), to)


def _low_bits(node: Node, x: Expr, to: str) -> Expr:
    """int32 as integers of few bits."""
    bits = int(to[-1])
    mask, sign = (1 << bits) - 1, 0 if to.startswith("u") else 1 << (bits - 1)
    low = node.emit(relax.op.bitwise_and(x, const(mask, "int32")))
    moved = node.emit(relax.op.bitwise_xor(low, const(sign, "int32")))
    return node.cast(node.emit(relax.op.subtract(moved, const(sign, "int32"))), CARRIERS[to])


def is_narrow_cast(node: Node) -> bool:
    """Whether it converts from a narrow type or to one."""
    if node.domain or node.op not in ("Cast", "CastLike"):
        return False
    return any(node.types) or (node.op == "Cast" and element_name(node.attr("to")) in CARRIERS)


def _converted(node: Node, to: str) -> Any:
    x = node.x
    if node.type_of(0) == to:
        return Narrow(x, to) if to in CARRIERS else x
    if dtype(x) == FLOAT8:
        x = in_float32(node.bb, x)
    return to_narrow(node, x, to) if to in CARRIERS else convert(node, x, to)


def cast(node: Node) -> Any:
    to = element_name(node.attr("to"))
    return _converted(node, to if to in CARRIERS else dtype_name(node.attr("to")))


def cast_like(node: Node) -> Any:
    return _converted(node, node.type_of(1))


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
