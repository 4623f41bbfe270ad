"""Elementwise operators of two or more inputs, with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from tvm import relax, tirx

from subtune.frontends.onnx.ops.node import SIGNED, UNSIGNED, Expr, const, dtype, is_float, numpy_dtype, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.twin import cast_to, one_dtype, twin

_INTS = (*SIGNED, *UNSIGNED)


def _operands(call: Call) -> tuple[Expr, Expr]:
    """Both operands, of one dtype and of shapes that broadcast."""
    a, b = one_dtype(call, (call.arg(0), call.arg(1)))
    try:
        np.broadcast_shapes(shape(a), shape(b))
    except ValueError:
        call.refuse(f"cannot broadcast {list(shape(a))} and {list(shape(b))}")
    return a, b


def _binary(op: Callable[..., Expr], allowed: tuple[str, ...] = ()) -> Converter:
    def convert(call: Call) -> Expr:
        a, b = _operands(call)
        if allowed and dtype(a) not in allowed:
            call.refuse(f"has dtype {dtype(a)}, which is not supported")
        return op(a, b)

    return convert


def _comparison(op: Callable[..., Expr]) -> Converter:
    """Booleans as 8-bit integers: LLVM's verifier refuses what TVM makes of comparisons of i1."""

    def convert(call: Call) -> Expr:
        a, b = _operands(call)
        if dtype(a) == "bool":
            a, b = call.cast(a, "int8"), call.cast(b, "int8")
        return op(a, b)

    return convert


def _of_onnx(op: str, **attrs: Any) -> Converter:
    return lambda call: call.onnx(op, *_operands(call), **attrs)


def broadcast_te(one: Callable[..., Any], *tensors: Any) -> Any:
    """A tensor expression applying `one` to the elements of tensors under numpy's broadcasting."""
    from tvm import te

    dims = np.broadcast_shapes(*(tuple(map(int, t.shape)) for t in tensors))

    def at(t: Any, index: tuple[Any, ...]) -> Any:
        own = index[len(dims) - len(t.shape) :]
        return t(*[0 if int(d) == 1 else i for i, d in zip(own, t.shape, strict=True)])

    return te.compute(dims, lambda *i: one(*(at(t, i) for t in tensors)), name="broadcast")


def _safe(q: Any) -> tirx.Select:
    """An integer divisor that cannot trap: what Relay leaves undefined is division by 1 here."""
    return tirx.Select(q == tirx.const(0, q.ty), tirx.const(1, q.ty), q)


def _of_te(integers: Callable[[Any, Any], Any], floats: Callable[[Any, Any], Any]) -> Converter:
    def convert(call: Call) -> Expr:
        a, b = _operands(call)
        wide = "float64" if dtype(a) == "float64" else "float32"

        def one(p: Any, q: Any) -> Any:
            if not is_float(a):
                return integers(p, _safe(q))
            return floats(p.astype(wide), q.astype(wide)).astype(dtype(a))

        return call.te(lambda x, y: broadcast_te(one, x, y), a, b)

    return convert


def power(call: Call) -> Expr:
    a, b = _operands(call)
    dims = np.broadcast_shapes(shape(a), shape(b))
    if shape(a) != dims:
        a = call.emit(relax.op.broadcast_to(a, dims))
    return call.onnx("Pow", a, b)


def where(call: Call) -> Expr:
    """A condition of numbers is true where it is not zero."""
    condition = call.arg(0)
    x, y = one_dtype(call, (call.arg(1), call.arg(2)))
    if dtype(condition) != "bool":
        condition = call.emit(relax.op.not_equal(condition, const(0, dtype(condition))))
    return relax.op.where(condition, x, y)


def cast(call: Call) -> Expr:
    return cast_to(call, call.x, call.dtype(dtype(call.x)))


def cast_like(call: Call) -> Expr:
    return cast_to(call, call.x, dtype(call.arg(1)))


def reinterpret(call: Call) -> Expr:
    to = call.dtype(dtype(call.x))
    return call.x if to == dtype(call.x) else call.onnx("BitCast", call.x, to=_element_type(to))


def _element_type(name: str) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(name)))


def clip(call: Call) -> Expr:
    """max(min(x, a_max), a_min), the limits as values of x's dtype."""
    x = call.x
    limits = np.finfo(numpy_dtype(dtype(x))) if dtype(x) in ("float16", "float32", "float64") else None
    low, high = call.attr("a_min"), call.attr("a_max")
    if dtype(x) in _INTS:
        info = np.iinfo(dtype(x))
        low = None if low is None or low <= info.min else min(int(low), int(info.max))
        high = None if high is None or high >= info.max else max(int(high), int(info.min))
    elif limits is not None:  # beyond the largest finite number nothing is clipped but infinities
        low = None if low is None or low == -np.inf else max(float(low), float(limits.min))
        high = None if high is None or high == np.inf else min(float(high), float(limits.max))
    if low is not None and high is not None:
        high = max(high, low)
    bounds = [None if v is None else const(v, dtype(x)) for v in (low, high)]
    return x if bounds == [None, None] else call.onnx("Clip", x, *bounds)


def fixed_point_multiply(call: Call) -> Expr:
    """round(x * multiplier * 2**(shift - 31)), halves upwards, in 64-bit integers."""
    multiplier, shift = call.one_int("multiplier"), call.one_int("shift")

    def one(v: Any) -> Any:
        wide = v.astype("int64") << tirx.const(max(shift, 0), "int64")
        return _rounded_shift(wide * tirx.const(multiplier, "int64"), tirx.const(31 + max(-shift, 0), "int64"))

    return call.te(lambda t: broadcast_te(one, t), _int32(call))


def _int32(call: Call) -> Expr:
    return call.x if dtype(call.x) == "int32" else call.refuse(f"has dtype {dtype(call.x)}, where int32 belongs")


def _rounded_shift(product: Any, count: Any) -> Any:
    one = tirx.const(1, "int64")
    return ((product + (one << (count - one))) >> count).astype("int32")


def fixed_point_multiply_per_axis(call: Call) -> Expr:
    """As `fixed_point_multiply`, with multiplier and shifts (left, right) per entry of the quantised axes."""
    axes = call.need_ints("axes")
    left, right = bool(call.attr("is_lshift_required", False)), bool(call.attr("is_rshift_required", False))

    def whole(t: Any, y: Any, lefts: Any, rights: Any) -> Any:
        from tvm import te

        def one(*i: Any) -> Any:
            at = [i[a] for a in axes]
            wide = t(*i).astype("int64")
            wide = wide << lefts(*at).astype("int64") if left else wide
            count = tirx.const(31, "int64")
            count = count + rights(*at).astype("int64") if right else count
            return _rounded_shift(wide * y(*at).astype("int64"), count)

        return te.compute(t.shape, one, name="fixed_point_multiply")

    return call.te(whole, _int32(call), call.arg(1), call.arg(2), call.arg(3))


_BITS = (*_INTS, "bool")

CONVERTERS: dict[str, Converter] = {
    "add": _binary(relax.op.add),
    "subtract": _binary(relax.op.subtract),
    "multiply": _binary(relax.op.multiply),
    "divide": _of_onnx("Div"),
    "trunc_divide": _of_te(tirx.truncdiv, lambda p, q: tirx.trunc(p / q)),
    "floor_divide": _of_te(tirx.floordiv, lambda p, q: tirx.floor(p / q)),
    "mod": _of_onnx("Mod", fmod=1),
    "trunc_mod": _of_te(tirx.truncmod, lambda p, q: p - q * tirx.trunc(p / q)),
    "floor_mod": _of_te(tirx.floormod, lambda p, q: p - q * tirx.floor(p / q)),
    "power": power,
    "maximum": _binary(relax.op.maximum),
    "minimum": _binary(relax.op.minimum),
    "left_shift": _of_onnx("BitShift", direction="LEFT"),
    "right_shift": _of_onnx("BitShift", direction="RIGHT"),
    "equal": _comparison(relax.op.equal),
    "not_equal": _comparison(relax.op.not_equal),
    "less": _comparison(relax.op.less),
    "less_equal": _comparison(relax.op.less_equal),
    "greater": _comparison(relax.op.greater),
    "greater_equal": _comparison(relax.op.greater_equal),
    "logical_and": _binary(relax.op.logical_and, ("bool",)),
    "logical_or": _binary(relax.op.logical_or, ("bool",)),
    "logical_xor": _binary(relax.op.logical_xor, ("bool",)),
    "bitwise_and": _binary(relax.op.bitwise_and, _BITS),
    "bitwise_or": _binary(relax.op.bitwise_or, _BITS),
    "bitwise_xor": _binary(relax.op.bitwise_xor, _BITS),
    "where": where,
    "cast": cast,
    "cast_like": cast_like,
    "reinterpret": reinterpret,
    "clip": clip,
    "fixed_point_multiply": fixed_point_multiply,
    "fixed_point_multiply_per_axis": fixed_point_multiply_per_axis,
    "bitwise_not": twin("BitwiseNot"),
    "logical_not": twin("Not"),
}
