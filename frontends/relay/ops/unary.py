"""Elementwise operators of one input."""

from __future__ import annotations

from tvm import relax, tirx

from subtune.frontends.onnx.ops.node import UNSIGNED, Expr, const, dtype, is_float
from subtune.frontends.onnx.ops.unary import mapped
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.twin import twin


def _rounding(op: str) -> Converter:
    """Integers are whole already."""
    return lambda call: call.onnx(op, call.x) if is_float(call.x) else call.x


def _logarithm(base: int) -> Converter:
    function = {2: tirx.log2, 10: tirx.log10}[base]

    def convert(call: Call) -> Expr:
        wide = _wide(call)
        return call.cast(call.te(lambda t: mapped(function, t), wide), dtype(call.x))

    return convert


def _wide(call: Call) -> Expr:
    """The argument with its 16-bit floats as float32, for which LLVM has functions."""
    x = call.x
    if not is_float(x):
        call.refuse(f"has dtype {dtype(x)}, which is not supported")
    return call.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x


def rsqrt(call: Call) -> Expr:
    return call.cast(call.emit(relax.op.rsqrt(_wide(call))), dtype(call.x))


def trunc(call: Call) -> Expr:
    if not is_float(call.x):
        return call.x
    return call.cast(call.emit(relax.op.trunc(_wide(call))), dtype(call.x))


def negative(call: Call) -> Expr:
    x = call.x
    return relax.op.subtract(const(0, dtype(x)), x) if dtype(x) in UNSIGNED else relax.op.negative(x)


def _of_floats(op: str, integers: bool) -> Converter:
    """isnan and its like: of integers the answer is known."""

    def convert(call: Call) -> Expr:
        if is_float(call.x):
            return isfinite(call) if op == "IsFinite" else call.onnx(op, call.x)
        return relax.op.full_like(call.x, const(integers, "bool"), dtype="bool")

    return convert


def isfinite(call: Call) -> Expr:
    return relax.op.isfinite(_wide(call))


CONVERTERS: dict[str, Converter] = {
    "negative": negative,
    "abs": twin("Abs"),
    "sign": twin("Sign"),
    "ceil": _rounding("Ceil"),
    "floor": _rounding("Floor"),
    "round": _rounding("Round"),
    "trunc": trunc,
    "exp": twin("Exp"),
    "log": twin("Log"),
    "log2": _logarithm(2),
    "log10": _logarithm(10),
    "sqrt": twin("Sqrt"),
    "rsqrt": rsqrt,
    "sin": twin("Sin"),
    "cos": twin("Cos"),
    "tan": twin("Tan"),
    "asin": twin("Asin"),
    "acos": twin("Acos"),
    "atan": twin("Atan"),
    "sinh": twin("Sinh"),
    "cosh": twin("Cosh"),
    "tanh": twin("Tanh"),
    "asinh": twin("Asinh"),
    "acosh": twin("Acosh"),
    "atanh": twin("Atanh"),
    "sigmoid": twin("Sigmoid"),
    "erf": twin("Erf"),
    # Approximations in Relay, for speed: the functions themselves here, whose kernels are fast enough.
    "fast_exp": twin("Exp"),
    "fast_tanh": twin("Tanh"),
    "fast_erf": twin("Erf"),
    "isnan": _of_floats("IsNaN", False),
    "isinf": _of_floats("IsInf", False),
    "isfinite": _of_floats("IsFinite", True),
}
