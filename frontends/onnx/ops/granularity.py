"""Scales and zero points of QuantizeLinear and DequantizeLinear: one, or one for each position or block of an axis."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, Node, array_const, axis_in, dtype, element_name, rank, shape
from subtune.frontends.onnx.ops.quantize import SCALES, scale_at, zero_at

Index = tuple[Any, ...]


def _channels(node: Node, x: Expr) -> tuple[int, int | None]:
    """The axis of the parameters, and how many they may be: None, of any shape, of blocks."""
    if node.attr("block_size", 0):
        axis, size = axis_in(node.attr("axis", 1), rank(x)), node.attr("block_size")
        dims = [-(-d // size) if a == axis else d for a, d in enumerate(shape(x))]
        if size < 0 or list(shape(node.need(1))) != dims:
            node.refuse(f"has parameters {list(shape(node.need(1)))} for blocks of {size} of {list(shape(x))}")
        return axis, None
    if prod(shape(node.need(1))) == 1:
        return 0, 1
    axis = axis_in(node.attr("axis", 1), rank(x))
    return axis, shape(x)[axis]


def parameters(node: Node, x: Expr, of: str) -> tuple[int, Expr, Expr | None]:
    """The axis, the scale in float32, and the zero point.

    Scales of blocks may be 0 or negative, as quantisers of weights make them.
    """
    axis, channels = _channels(node, x)
    scale, zero = scale_at(node, 1, channels, SCALES, positive=channels is not None), zero_at(node, 2, of, channels)
    if zero is not None and prod(shape(zero)) != prod(shape(scale)):
        node.refuse(f"has a scale of shape {list(shape(scale))} and a zero point of shape {list(shape(zero))}")
    known = node.known(1)
    return axis, node.cast(scale, "float32") if known is None else array_const(known.astype("float32")), zero


def named(node: Node, name: str, default: str) -> str:
    return element_name(node.attr(name)) if node.attr(name, 0) else default


def half_of_quotient(node: Node) -> str:
    """The half in which x is divided by the scale, or "" for float32."""
    of = named(node, "precision", "bfloat16" if dtype(node.need(1)) == "bfloat16" else "float32")
    if of not in SCALES:
        node.refuse(f"divides in {of}, which is not supported")
    return "" if of == "float32" else of


def ratio_in(half: str, x: Any, scale: Any) -> Any:
    """x / scale in float32, or rounded to `half`, as both are before."""

    def rounded(v: Any) -> Any:
        return v.astype(half).astype("float32") if half else v

    return rounded(rounded(x.astype("float32")) / rounded(scale))


def index_of(axis: int, size: int, scale: Expr) -> Callable[[Index], Index]:
    """Where the parameter of the element at an index is read; `size` of a block, 0 where there are none."""
    if size:
        return lambda index: tuple(tirx.floordiv(v, size) if a == axis else v for a, v in enumerate(index))
    if prod(shape(scale)) == 1:
        return lambda index: (0,) * rank(scale)
    return lambda index: (index[axis],)


def elementwise(
    node: Node,
    x: Expr,
    scale: Expr,
    zero: Expr | None,
    at: Callable[[Index], Index],
    of: Callable[..., Any],
    zeros: str = "int32",
) -> Expr:
    """A loop over the elements of x: `of` each, its scale, and its zero point, which is made a `zeros`."""
    if zero is None:
        none = tirx.const(0, zeros)
        return node.te(lambda t, s: _loop(node, t, lambda i: of(t(*i), s(*at(i)), none)), x, scale)
    if shape(zero) != shape(scale):
        zero = node.emit(relax.op.reshape(zero, shape(scale)))
    zero = node.cast(zero, zeros)
    return node.te(lambda t, s, z: _loop(node, t, lambda i: of(t(*i), s(*at(i)), z(*at(i)))), x, scale, zero)


def _loop(node: Node, t: Any, at: Callable[[Index], Any]) -> Any:
    return te.compute(t.shape, lambda *i: at(i), name=node.op.lower())
