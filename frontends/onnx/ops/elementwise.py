"""Elementwise operators of two or many inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from subtune.frontends.onnx.ops.node import (
    FLOATS,
    SIGNED,
    UNSIGNED,
    Converter,
    Expr,
    Node,
    const,
    dtype,
    is_float,
    known_array,
    rank,
    shape,
)

_INTS = (*SIGNED, *UNSIGNED)


def legacy_operands(node: Node) -> tuple[Expr, Expr]:
    """Both operands of a binary operator; before opset 7 the second is aligned at attribute `axis`."""
    a, b = node.need(0), node.need(1)
    if node.opset < 7 and node.attr("broadcast", 0) and "axis" in node.attrs:
        axis = node.attr("axis") % rank(a)
        tail = rank(a) - axis - rank(b)
        b = node.emit(relax.op.reshape(b, (*shape(b), *[1] * tail)))
    if dtype(a) != dtype(b) and node.op != "Pow":
        node.refuse(f"mixes {dtype(a)} and {dtype(b)}")
    return a, b


def binary(op: Callable[..., Expr], allowed: tuple[str, ...] = (*FLOATS, *_INTS)) -> Converter:
    def convert(node: Node) -> Expr:
        a, b = legacy_operands(node)
        if dtype(a) not in allowed:
            node.refuse(f"has dtype {dtype(a)}, which is not supported")
        return op(a, b)

    return convert


def div(node: Node) -> Expr:
    """Integers are divided towards zero; by zero is undefined in ONNX and traps on x86, so the divisor is
    guarded.
    """
    a, b = legacy_operands(node)
    if is_float(a):
        return relax.op.divide(a, b)
    known = node.known(1)
    if known is not None and (known == 0).any():
        node.refuse("divides integers by a constant zero")

    def truncated(x: Any, y: Any) -> Any:
        def one(p: Any, q: Any) -> Any:
            safe = tirx.Select(q == tirx.const(0, q.ty), tirx.const(1, q.ty), q)
            return tirx.truncdiv(p, safe)

        return _broadcast_te(one, x, y)

    return node.te(truncated, a, b)


def mod(node: Node) -> Expr:
    """fmod=1: the sign of the dividend; fmod=0 (integers): the sign of the divisor."""
    a, b = legacy_operands(node)
    fmod = node.attr("fmod", 0)
    if is_float(a) and not fmod:
        node.refuse("has floats without fmod=1")

    def one(p: Any, q: Any) -> Any:
        if is_float(a):
            wide = "float64" if dtype(a) == "float64" else "float32"
            name = "fmod" if wide == "float64" else "fmodf"  # LLVM has no intrinsic: the C library's
            return tirx.call_pure_extern(wide, name, p.astype(wide), q.astype(wide)).astype(dtype(a))
        safe = tirx.Select(q == tirx.const(0, q.ty), tirx.const(1, q.ty), q)
        r = tirx.truncmod(p, safe)
        if fmod or dtype(a) in UNSIGNED:
            return r
        zero = tirx.const(0, q.ty)
        differs = tirx.any(tirx.all(r > zero, safe < zero), tirx.all(r < zero, safe > zero))
        return tirx.Select(differs, r + safe, r)

    return node.te(lambda x, y: _broadcast_te(one, x, y), a, b)


def _broadcast_te(one: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """A tensor expression applying `one` to two tensors under numpy's broadcasting."""
    from tvm import te

    dims = np.broadcast_shapes(tuple(map(int, x.shape)), tuple(map(int, y.shape)))

    def at(t: Any, index: tuple[Any, ...]) -> Any:
        own = index[len(dims) - len(t.shape) :]
        return t(*[0 if int(d) == 1 else i for i, d in zip(own, t.shape, strict=True)])

    return te.compute(dims, lambda *i: one(at(x, i), at(y, i)), name="broadcast")


def power(node: Node) -> Expr:
    """The exponent may have another dtype; the result has the base's. Integer powers are exact, modulo 2**bits; to
    exponents of floats they are computed in float64, as ONNX Runtime does.
    """
    a, b = legacy_operands(node)
    if is_float(a):
        known = node.known(1)
        if known is not None and known.size == 1 and known.reshape(()) == 2:
            out = np.broadcast_shapes(shape(a), shape(b))
            a = a if out == shape(a) else node.emit(relax.op.reshape(a, out))  # one exponent: only axes of 1 are new
            return relax.op.multiply(a, a)
        wide = "float64" if "float64" in (dtype(a), dtype(b)) or dtype(b) in ("int64", "int32") else "float32"
        powered = relax.op.power(node.cast(a, wide), node.cast(b, wide))
        return node.cast(node.emit(powered), dtype(a))
    if is_float(b):
        powered = relax.op.power(node.cast(a, "float64"), node.cast(b, "float64"))
        return node.cast(node.emit(powered), dtype(a))

    def squaring(p: Any, q: Any) -> Any:
        bits = int(dtype(b).removeprefix("u").removeprefix("int"))
        result, base, one = tirx.const(1, p.ty), p, tirx.const(1, q.ty)
        for bit in range(min(bits, 6)):  # exponents up to 63 decide every 64-bit power but 0, 1 and -1
            result = tirx.Select(((q >> tirx.const(bit, q.ty)) & one) != tirx.const(0, q.ty), result * base, result)
            base = base * base
        return result

    return node.te(lambda x, y: _broadcast_te(squaring, x, y), a, b)


def shift(node: Node) -> Expr:
    """Right shifts of signed integers copy the sign; by the width or more, nothing else is left."""
    a, b = legacy_operands(node)
    if dtype(a) not in _INTS:
        node.refuse(f"has dtype {dtype(a)}, which is not supported")
    left = node.attr("direction") == "LEFT"
    width = int(dtype(a).removeprefix("u").removeprefix("int"))

    def one(p: Any, q: Any) -> tirx.Select:
        zero = tirx.const(0, p.ty)
        count = q.astype("int64")  # signed, because TVM's simplifier fails on comparisons of unsigned integers
        fits = tirx.all(count >= tirx.const(0, "int64"), count < tirx.const(width, "int64"))
        amount = tirx.Select(fits, q, zero)
        moved = (p << amount) if left else (p >> amount)
        if left or dtype(a) in UNSIGNED:
            return tirx.Select(fits, moved, zero)
        beyond = tirx.Select(p < zero, tirx.const(-1, p.ty), zero)  # only copies of the sign are left
        return tirx.Select(fits, moved, beyond)

    return node.te(lambda x, y: _broadcast_te(one, x, y), a, b)


def variadic(op: Callable[..., Expr]) -> Converter:
    """Max, Min, Sum: any number of inputs, broadcast from opset 8."""

    def convert(node: Node) -> Expr:
        result = node.x
        for other in node.every[1:]:
            result = node.emit(op(result, other))
        return result

    return convert


def mean(node: Node) -> Expr:
    total = variadic(relax.op.add)(node)
    return relax.op.divide(total, const(len(node.every), dtype(total)))


def extreme(largest: bool) -> Converter:
    """Max or Min of any number of inputs; NaN propagates from every side, as numpy's does.

    A comparison with NaN fails, and the extreme is then the second: the result so far, which stands there once, as what
    stands there twice doubles with every input of a chain. Only the other is asked.
    """

    def one(p: Any, q: Any) -> tirx.Select:
        return tirx.Select(tirx.isnan(q.astype("float32")), q, (tirx.max if largest else tirx.min)(q, p))

    def convert(node: Node) -> Expr:
        result = node.x
        for other in node.every[1:]:
            if is_float(result):
                result = node.te(lambda x, y: _broadcast_te(one, x, y), result, other)
            else:
                result = node.emit((relax.op.maximum if largest else relax.op.minimum)(result, other))
        return result

    return convert


def clip(node: Node) -> Expr:
    """min(max(x, low), high); low and high are attributes before opset 11.

    The bound comes first: a comparison with NaN fails, and the maximum is then the second.
    """
    x = node.x
    if node.opset < 11:
        low = const(node.attr("min"), dtype(x)) if node.attr("min") is not None else None
        high = const(node.attr("max"), dtype(x)) if node.attr("max") is not None else None
    else:
        low, high = node.get(1), node.get(2)
    lows, highs = _scalar(node, low), _scalar(node, high)
    known = dtype(x) == "float32" and lows is not None and highs is not None
    if known and np.isfinite([lows, highs]).all() and lows <= highs:
        return relax.op.clip(x, float(lows), float(highs))
    result = x
    if low is not None:
        result = node.emit(relax.op.maximum(low, result))
    if high is not None:
        result = node.emit(relax.op.minimum(high, result))
    return result


def _scalar(node: Node, value: Expr | None) -> Any:
    array = None if value is None else known_array(value, node.arrays)
    return None if array is None or array.size != 1 else array.reshape(()).item()


def where(node: Node) -> Expr:
    return relax.op.where(node.need(0), node.need(1), node.need(2))


def logical(op: Callable[..., Expr]) -> Converter:
    return binary(op, ("bool",))


def equal(node: Node) -> Expr:
    a, b = legacy_operands(node)
    if dtype(a) == "bool":
        a, b = node.cast(a, "int8"), node.cast(b, "int8")
    return relax.op.equal(a, b)


def identity(node: Node) -> Any:
    return node.need(0)


CONVERTERS: dict[str, Converter] = {
    "Add": binary(relax.op.add),
    "Sub": binary(relax.op.subtract),
    "Mul": binary(relax.op.multiply),
    "Div": div,
    "Mod": mod,
    "Pow": power,
    "BitShift": shift,
    "BitwiseAnd": binary(relax.op.bitwise_and, _INTS),
    "BitwiseOr": binary(relax.op.bitwise_or, _INTS),
    "BitwiseXor": binary(relax.op.bitwise_xor, _INTS),
    "And": logical(relax.op.logical_and),
    "Or": logical(relax.op.logical_or),
    "Xor": logical(relax.op.logical_xor),
    "Equal": equal,
    "Less": binary(relax.op.less),
    "LessOrEqual": binary(relax.op.less_equal),
    "Greater": binary(relax.op.greater),
    "GreaterOrEqual": binary(relax.op.greater_equal),
    "Max": extreme(True),
    "Min": extreme(False),
    "Sum": variadic(relax.op.add),
    "Mean": mean,
    "Where": where,
    "Identity": identity,
    "Clip": clip,
}
