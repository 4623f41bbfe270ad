"""Elementwise operators of one, two or many inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from subtune.frontends.onnx_ops.node import (
    FLOATS,
    SIGNED,
    UNSIGNED,
    Converter,
    Expr,
    Node,
    const,
    dtype,
    is_float,
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
    """Integers are divided towards zero; by zero is undefined in ONNX and traps on x86, so the divisor is guarded."""
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
    """The exponent may have another dtype; the result has the base's. Integer powers are exact, modulo 2**bits."""
    a, b = legacy_operands(node)
    if is_float(a):
        known = node.known(1)
        if known is not None and known.size == 1 and known.reshape(()) == 2:
            out = np.broadcast_shapes(shape(a), shape(b))
            return relax.op.multiply(a, a) if out == shape(a) else node.refuse("broadcasts its base")
        wide = "float64" if "float64" in (dtype(a), dtype(b)) or dtype(b) in ("int64", "int32") else "float32"
        powered = relax.op.power(node.cast(a, wide), node.cast(b, wide))
        return node.cast(node.emit(powered), dtype(a))
    if is_float(b):
        if dtype(a) in ("int64", "uint64"):
            node.refuse(f"raises {dtype(a)} to a {dtype(b)}")
        powered = relax.op.power(node.cast(a, "float64"), node.cast(b, "float64"))
        return node.cast(node.emit(powered), dtype(a))

    def squaring(p: Any, q: Any) -> Any:
        bits = int(dtype(b).removeprefix("u").removeprefix("int"))
        result, base, one = tirx.const(1, p.ty), p, tirx.const(1, q.ty)
        for bit in range(min(bits, 6)):  # exponents up to 63 decide every 64-bit power but 0, 1 and -1
            result = tirx.Select(
                ((q >> tirx.const(bit, q.ty)) & one) != tirx.const(0, q.ty), result * base, result
            )
            base = base * base
        return result

    return node.te(lambda x, y: _broadcast_te(squaring, x, y), a, b)


def shift(node: Node) -> Expr:
    """Shifts by the width or more give zero."""
    a, b = legacy_operands(node)
    if dtype(a) not in UNSIGNED:
        node.refuse(f"has dtype {dtype(a)}, which ONNX does not define")
    left = node.attr("direction") == "LEFT"
    width = int(dtype(a).removeprefix("uint"))

    def one(p: Any, q: Any) -> Any:
        zero = tirx.const(0, p.ty)
        count = q.astype(
            "int64"
        )  # signed, because TVM's simplifier fails on comparisons of unsigned integers
        fits = tirx.all(count >= tirx.const(0, "int64"), count < tirx.const(width, "int64"))
        amount = tirx.Select(fits, q, zero)
        return tirx.Select(fits, (p << amount) if left else (p >> amount), zero)

    return node.te(lambda x, y: _broadcast_te(one, x, y), a, b)


def variadic(op: Callable[..., Expr]) -> Converter:
    """Max, Min, Sum: any number of inputs, broadcast from opset 8."""

    def convert(node: Node) -> Expr:
        result = node.x
        for other in node.inputs[1:]:
            result = node.emit(op(result, other))
        return result

    return convert


def mean(node: Node) -> Expr:
    total = variadic(relax.op.add)(node)
    return relax.op.divide(total, const(len(node.inputs), dtype(total)))


def _extreme(largest: bool) -> Callable[[Expr, Expr], Expr]:
    """Maximum or minimum that propagates NaN from either side, as numpy's does."""

    def combined(node: Node, a: Expr, b: Expr) -> Expr:
        if not is_float(a):
            return relax.op.maximum(a, b) if largest else relax.op.minimum(a, b)

        def one(p: Any, q: Any) -> Any:
            first = (p >= q) if largest else (p <= q)
            return tirx.Select(tirx.isnan(p.astype("float32")), p, tirx.Select(first, p, q))

        return node.te(lambda x, y: _broadcast_te(one, x, y), a, b)

    return combined


def extreme(largest: bool) -> Converter:
    op = _extreme(largest)

    def convert(node: Node) -> Expr:
        result = node.x
        for other in node.inputs[1:]:
            result = node.emit(op(node, result, other))
        return result

    return convert


def unary(op: Callable[..., Expr], allowed: tuple[str, ...] = (*FLOATS, *_INTS)) -> Converter:
    def convert(node: Node) -> Expr:
        if dtype(node.x) not in allowed:
            node.refuse(f"has dtype {dtype(node.x)}, which is not supported")
        return op(node.x)

    return convert


def through_float32(op: Callable[..., Expr]) -> Converter:
    """Transcendental functions: LLVM has no half precision versions, so 16-bit floats pass through float32."""

    def convert(node: Node) -> Expr:
        x = node.x
        if not is_float(x):
            node.refuse(f"has dtype {dtype(x)}, which is not supported")
        if dtype(x) not in ("float16", "bfloat16"):
            return op(x)
        return node.cast(node.emit(op(node.cast(x, "float32"))), dtype(x))

    return convert


def by_te(one: Callable[[Any], Any]) -> Converter:
    """An elementwise float function written on scalars, computed in float32 or float64."""

    def convert(node: Node) -> Expr:
        x = node.x
        if not is_float(x):
            node.refuse(f"has dtype {dtype(x)}, which is not supported")
        wide = "float64" if dtype(x) == "float64" else "float32"

        def whole(t: Any) -> Any:
            return topi_map(lambda v: one(v.astype(wide)).astype(dtype(x)), t)

        return node.te(whole, x)

    return convert


def topi_map(one: Callable[[Any], Any], t: Any) -> Any:
    from tvm import te

    return te.compute(t.shape, lambda *i: one(t(*i)), name="map")


def _c(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty)


def _asinh(v: Any) -> Any:
    """asinh by |x|, so that large negative values do not cancel; small ones by the series x - x**3/6."""
    magnitude = tirx.abs(v)
    exact = tirx.log(magnitude + tirx.sqrt(magnitude * magnitude + _c(1.0, v)))
    huge = tirx.log(magnitude) + _c(0.6931471805599453, v)
    large = tirx.Select(magnitude > _c(1e9, v), huge, exact)
    series = magnitude - magnitude * magnitude * magnitude / _c(6.0, v)
    result = tirx.Select(magnitude < _c(1e-2, v), series, large)
    return tirx.Select(v < _c(0.0, v), -result, result)


def _acosh(v: Any) -> Any:
    huge = tirx.log(v) + _c(0.6931471805599453, v)
    exact = tirx.log(v + tirx.sqrt(v - _c(1.0, v)) * tirx.sqrt(v + _c(1.0, v)))
    return tirx.Select(v > _c(1e9, v), huge, exact)


def _sign(v: Any) -> Any:
    one, zero = tirx.const(1, v.ty), tirx.const(0, v.ty)
    return tirx.Select(v > zero, one, tirx.Select(v < zero, zero - one, zero))


def sign(node: Node) -> Expr:
    x = node.x
    if dtype(x) in UNSIGNED:
        return node.emit(relax.op.minimum(x, const(1, dtype(x))))
    return node.te(lambda t: topi_map(_sign, t), x)


def isinf(node: Node) -> Expr:
    x = node.x
    wide = x if dtype(x) in ("float32", "float64") else node.cast(x, "float32")
    positive = relax.op.equal(wide, const(np.inf, dtype(wide)))
    negative = relax.op.equal(wide, const(-np.inf, dtype(wide)))
    if not node.attr("detect_negative", 1):
        return positive if node.attr("detect_positive", 1) else relax.op.not_equal(x, x)
    return relax.op.logical_or(positive, negative) if node.attr("detect_positive", 1) else negative


def isnan(node: Node) -> Expr:
    x = node.x
    return relax.op.isnan(x if dtype(x) in ("float32", "float64") else node.cast(x, "float32"))


def clip(node: Node) -> Expr:
    """min(max(x, low), high); low and high are attributes before opset 11."""
    x = node.x
    if node.opset < 11:
        low = const(node.attr("min"), dtype(x)) if node.attr("min") is not None else None
        high = const(node.attr("max"), dtype(x)) if node.attr("max") is not None else None
    else:
        low, high = node.get(1), node.get(2)
    lows, highs = _scalar(node, low), _scalar(node, high)
    if (
        lows is not None
        and highs is not None
        and np.isfinite([float(lows), float(highs)]).all()
        and lows <= highs
    ):
        if dtype(x) == "float32":
            return relax.op.clip(x, float(lows), float(highs))
    result = x
    if low is not None:
        result = node.emit(relax.op.maximum(result, low))
    if high is not None:
        result = node.emit(relax.op.minimum(result, high))
    return result


def _scalar(node: Node, value: Expr | None) -> Any:
    from subtune.frontends.onnx_ops.node import known_array

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


def neg(node: Node) -> Expr:
    return relax.op.negative(node.x)


def relu(node: Node) -> Expr:
    x = node.x
    return relax.op.nn.relu(x) if dtype(x) == "float32" else relax.op.maximum(x, const(0, dtype(x)))


def bitwise_not(node: Node) -> Expr:
    return relax.op.bitwise_not(node.x)


def round_even(v: Any) -> Any:
    return tirx.nearbyint(v)


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
    "BitwiseNot": unary(relax.op.bitwise_not, _INTS),
    "And": logical(relax.op.logical_and),
    "Or": logical(relax.op.logical_or),
    "Xor": logical(relax.op.logical_xor),
    "Not": unary(relax.op.logical_not, ("bool",)),
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
    "Neg": unary(relax.op.negative, (*FLOATS, *SIGNED)),
    "Abs": unary(relax.op.abs),
    "Sign": sign,
    "Floor": through_float32(relax.op.floor),
    "Ceil": through_float32(relax.op.ceil),
    "Round": by_te(round_even),
    "Sqrt": through_float32(relax.op.sqrt),
    "Reciprocal": lambda node: relax.op.divide(const(1, dtype(node.x)), node.x),
    "Exp": through_float32(relax.op.exp),
    "Log": through_float32(relax.op.log),
    "Sin": through_float32(relax.op.sin),
    "Cos": through_float32(relax.op.cos),
    "Tan": through_float32(relax.op.tan),
    "Sinh": through_float32(relax.op.sinh),
    "Cosh": through_float32(relax.op.cosh),
    "Tanh": through_float32(relax.op.tanh),
    "Asin": through_float32(relax.op.asin),
    "Acos": through_float32(relax.op.acos),
    "Atan": through_float32(relax.op.atan),
    "Asinh": by_te(_asinh),
    "Acosh": by_te(_acosh),
    "Atanh": by_te(
        lambda v: _c(0.5, v) * tirx.log1p(_c(2.0, v) * v / (_c(1.0, v) - v)),
    ),
    "Erf": through_float32(relax.op.erf),
    "IsInf": isinf,
    "IsNaN": isnan,
    "Clip": clip,
}
