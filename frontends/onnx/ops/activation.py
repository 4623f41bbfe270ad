"""Activation functions."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, dtype, is_float, rank, shape
from subtune.frontends.onnx.ops.unary import by_te, through_float32


def _wide(node: Node, x: Expr) -> Expr:
    """16-bit floats as float32: the intermediate values of these formulas overflow half precision."""
    if not is_float(x):
        node.refuse(f"has dtype {dtype(x)}, which is not supported")
    return node.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x


def _c(value: float, like: Any) -> Any:
    return tirx.const(value, like.ty)


def relu(node: Node) -> Expr:
    x = node.x
    return relax.op.nn.relu(x) if dtype(x) == "float32" else relax.op.maximum(x, const(0, dtype(x)))


def leaky_relu(node: Node) -> Expr:
    x = node.x
    alpha = node.attr("alpha", 0.01)
    if alpha == 0:  # the product with zero would be folded, also that of NaN
        return relax.op.nn.relu(x)
    if dtype(x) == "float32":
        return relax.op.nn.leakyrelu(x, alpha)
    return relax.op.where(relax.op.less(x, const(0, dtype(x))), relax.op.multiply(x, const(alpha, dtype(x))), x)


def prelu(node: Node) -> Expr:
    """Slope broadcasts to x; before opset 7 a vector slope is per channel (axis 1)."""
    x, slope = node.need(0), node.need(1)
    if node.opset < 7 and rank(slope) == 1 and rank(x) > 2 and shape(slope)[0] != 1:
        slope = node.emit(relax.op.reshape(slope, (shape(slope)[0], *[1] * (rank(x) - 2))))
    scaled = relax.op.multiply(x, slope)
    return relax.op.where(relax.op.less(x, const(0, dtype(x))), scaled, x)


def elu(node: Node) -> Expr:
    alpha = node.attr("alpha", 1.0)

    def one(v: Any) -> tirx.Select:
        return tirx.Select(v < _c(0, v), _c(alpha, v) * (tirx.exp(tirx.min(v, _c(0, v))) - _c(1, v)), v)

    return by_te(one)(node)


def celu(node: Node) -> Expr:
    alpha = node.attr("alpha", 1.0)

    def one(v: Any) -> tirx.Select:
        below = _c(alpha, v) * (tirx.exp(tirx.min(v, _c(0, v)) / _c(alpha, v)) - _c(1, v))
        return tirx.Select(v < _c(0, v), below, v)

    return by_te(one)(node)


def selu(node: Node) -> Expr:
    alpha = node.attr("alpha", 1.67326319217681884765625)
    gamma = node.attr("gamma", 1.05070102214813232421875)
    if node.opset < 6:
        alpha, gamma = node.attr("alpha", 1.6732), node.attr("gamma", 1.0507)

    def one(v: Any) -> Any:
        below = _c(alpha, v) * (tirx.exp(tirx.min(v, _c(0, v))) - _c(1, v))
        return _c(gamma, v) * tirx.Select(v > _c(0, v), v, below)

    return by_te(one)(node)


def hard_sigmoid(node: Node) -> Expr:
    x = node.x
    alpha, beta = node.attr("alpha", 0.2), node.attr("beta", 0.5)
    line = relax.op.add(relax.op.multiply(x, const(alpha, dtype(x))), const(beta, dtype(x)))
    return relax.op.maximum(const(0, dtype(x)), relax.op.minimum(const(1, dtype(x)), line))


def hard_swish(node: Node) -> Expr:
    x = node.x
    line = relax.op.add(relax.op.multiply(x, const(1 / 6, dtype(x))), const(0.5, dtype(x)))
    gate = relax.op.maximum(const(0, dtype(x)), relax.op.minimum(const(1, dtype(x)), line))
    return relax.op.multiply(x, gate)


def softplus(node: Node) -> Expr:
    """max(x, 0) + log1p(exp(-|x|)), which neither overflows nor loses small values."""

    def one(v: Any) -> Any:
        return tirx.max(v, _c(0, v)) + tirx.log1p(tirx.exp(_c(0, v) - tirx.abs(v)))

    return by_te(one)(node)


def softsign(node: Node) -> Expr:
    x = node.x
    return relax.op.divide(x, relax.op.add(const(1, dtype(x)), relax.op.abs(x)))


def mish(node: Node) -> Expr:
    """x tanh(softplus(x)) = x n / (n + 2) with n = e^x (e^x + 2); beyond 20 it is x."""

    def one(v: Any) -> tirx.Select:
        e = tirx.exp(tirx.min(v, _c(20, v)))
        n = e * (e + _c(2, v))
        return tirx.Select(v > _c(20, v), v, v * n / (n + _c(2, v)))

    return by_te(one)(node)


def gelu(node: Node) -> Expr:
    x = node.x
    wide = _wide(node, x)
    approximate = node.attr("approximate", "none") == "tanh"
    op = relax.op.nn.gelu_tanh if approximate else relax.op.nn.gelu
    return node.cast(node.emit(op(wide)), dtype(x))


def swish(node: Node) -> Expr:
    x = node.x
    wide = _wide(node, x)
    alpha = node.attr("alpha", 1.0)
    gate = relax.op.sigmoid(wide if alpha == 1.0 else relax.op.multiply(wide, const(alpha, dtype(wide))))
    return node.cast(node.emit(relax.op.multiply(wide, gate)), dtype(x))


def thresholded_relu(node: Node) -> Expr:
    x = node.x
    above = relax.op.greater(x, const(node.attr("alpha", 1.0), dtype(x)))
    return relax.op.where(above, x, const(0, dtype(x)))


def shrink(node: Node) -> Expr:
    lambd, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    x = node.x

    def whole(t: Any) -> Any:
        from tvm import te

        def one(*i: Any) -> tirx.Select:
            v = t(*i)
            wide = v.astype("float64")
            zero = tirx.const(0, v.ty)
            below = tirx.Cast(dtype(x), wide + tirx.const(bias, "float64"))
            above = tirx.Cast(dtype(x), wide - tirx.const(bias, "float64"))
            small = tirx.Select(wide > tirx.const(lambd, "float64"), above, zero)
            return tirx.Select(wide < tirx.const(-lambd, "float64"), below, small)

        return te.compute(t.shape, one, name="shrink")

    return node.te(whole, x)


def softmax(log: bool) -> Converter:
    """Before opset 13 the axes from `axis` on are taken together."""

    def convert(node: Node) -> Expr:
        x = node.x
        if node.opset >= 13:
            return _softmax(node, x, axis_in(node.attr("axis", -1), rank(x)), log)
        return relax.op.reshape(_softmax(node, _flattened(node, x), 1, log), shape(x))

    return convert


def _softmax(node: Node, x: Expr, axis: int, log: bool) -> Expr:
    """16-bit floats go by the steps of ONNX's definition, each rounded to the input's dtype but the sum at
    its end.
    """
    if dtype(x) not in ("float16", "bfloat16"):
        wide = _wide(node, x)
        return node.emit((relax.op.nn.log_softmax if log else relax.op.nn.softmax)(wide, axis=axis))
    top = node.emit(relax.op.max(node.cast(x, "float32"), axis=[axis], keepdims=True))
    shifted = node.emit(relax.op.subtract(x, node.cast(top, dtype(x))))
    powers = node.cast(node.emit(relax.op.exp(node.cast(shifted, "float32"))), dtype(x))
    total = node.emit(relax.op.sum(node.cast(powers, "float32"), axis=[axis], keepdims=True))
    if log:
        return node.emit(relax.op.subtract(shifted, node.cast(node.emit(relax.op.log(total)), dtype(x))))
    return node.emit(relax.op.divide(powers, node.cast(total, dtype(x))))


def _flattened(node: Node, x: Expr) -> Expr:
    axis = axis_in(node.attr("axis", 1), rank(x))
    outer = 1
    for extent in shape(x)[:axis]:
        outer *= extent
    return node.emit(relax.op.reshape(x, (outer, -1)))


def hardmax(node: Node) -> Expr:
    """1 at the first maximum along the axis, else 0."""
    x = node.x
    if node.opset >= 13:
        return _hardmax(node, x, axis_in(node.attr("axis", -1), rank(x)))
    return relax.op.reshape(_hardmax(node, _flattened(node, x), 1), shape(x))


def _hardmax(node: Node, x: Expr, axis: int) -> Expr:
    from subtune.frontends.onnx.ops.reduce import arg_extreme

    best = arg_extreme(node, x, axis, largest=True, last=False)

    def whole(t: Any, at: Any) -> Any:
        from tvm import te

        def one(*i: Any) -> tirx.Select:
            outer = [v for a, v in enumerate(i) if a != axis]
            hit = at(*outer) == i[axis].astype("int64")
            return tirx.Select(hit, tirx.const(1, t.dtype), tirx.const(0, t.dtype))

        return te.compute(t.shape, one, name="hardmax")

    return node.te(whole, x, best)


CONVERTERS: dict[str, Converter] = {
    "Relu": relu,
    "LeakyRelu": leaky_relu,
    "PRelu": prelu,
    "Elu": elu,
    "Celu": celu,
    "Selu": selu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
    "Sigmoid": through_float32(relax.op.sigmoid),
    "Softplus": softplus,
    "Softsign": softsign,
    "Mish": mish,
    "Gelu": gelu,
    "Swish": swish,
    "ThresholdedRelu": thresholded_relu,
    "Shrink": shrink,
    "Softmax": softmax(log=False),
    "LogSoftmax": softmax(log=True),
    "Hardmax": hardmax,
}
