"""Normalisations."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.functions import UseBody
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, axis_in, const, dtype, is_float, rank, shape


def _wide(node: Node, x: Expr) -> Expr:
    if not is_float(x):
        node.refuse(f"has dtype {dtype(x)}, which is not supported")
    return node.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x


def batch_normalization(node: Node) -> tuple[Expr, ...]:
    x, scale, bias, mean, var = (_wide(node, node.need(i)) for i in range(5))
    epsilon = node.attr("epsilon", 1e-5)
    if node.opset < 9 and node.attr("spatial", 1) == 0:
        node.refuse("has spatial=0")
    training = node.attr("training_mode", 0) if node.opset >= 14 else 0
    if node.opset < 7 and not node.attr("is_test", 0):
        node.refuse("is in training mode (is_test is 0)")
    if len({dtype(v) for v in (x, scale, bias, mean, var)}) > 1:
        node.refuse("mixes dtypes")
    if not training:
        result = node.emit(relax.op.nn.batch_norm(x, scale, bias, mean, var, axis=1, epsilon=epsilon, training=False))
        y = node.emit(relax.TupleGetItem(result, 0))
        return (node.cast(y, dtype(node.x)), *[None] * (len(node.wanted) - 1))
    axes = [a for a in range(rank(x)) if a != 1]
    momentum = node.attr("momentum", 0.9)
    now = node.emit(relax.op.mean(x, axis=axes, keepdims=True))
    spread = node.emit(relax.op.subtract(x, now))
    variance = node.emit(relax.op.mean(relax.op.multiply(spread, spread), axis=axes, keepdims=True))
    column = (1, shape(x)[1], *[1] * (rank(x) - 2))
    scaled = relax.op.divide(spread, relax.op.sqrt(relax.op.add(variance, const(epsilon, dtype(x)))))
    gain = relax.op.multiply(scaled, relax.op.reshape(scale, column))
    y = node.emit(relax.op.add(gain, relax.op.reshape(bias, column)))

    def running(old: Expr, new: Expr, like: Expr) -> Expr:
        flat = relax.op.reshape(new, shape(old))
        kept = relax.op.multiply(old, const(momentum, dtype(old)))
        mixed = relax.op.add(kept, relax.op.multiply(flat, const(1.0 - momentum, dtype(old))))
        return node.cast(node.emit(mixed), dtype(like))

    outputs = (
        node.cast(y, dtype(node.x)),
        running(mean, now, node.need(3)),
        running(var, variance, node.need(4)),
    )
    return outputs[: len(node.wanted)]


def layer_normalization(node: Node) -> tuple[Expr, ...]:
    """Over the axes from `axis` on; mean and inverse deviation are computed only if used."""
    x = _wide(node, node.x)
    axis = axis_in(node.attr("axis", -1), rank(x))
    axes = list(range(axis, rank(x)))
    epsilon = node.attr("epsilon", 1e-5)
    tail = shape(x)[axis:]

    def parameter(value: Expr | None, fill: float) -> Expr:
        if value is None:
            return node.emit(relax.op.full(tail, const(fill, dtype(x)), dtype(x)))
        wide = _wide(node, value)
        if shape(wide) == tail:
            return wide
        if prod(shape(wide)) == prod(tail):
            return node.emit(relax.op.reshape(wide, tail))
        return node.emit(relax.op.broadcast_to(wide, tail))

    gamma, beta = parameter(node.need(1), 1.0), parameter(node.get(2), 0.0)
    y = node.emit(relax.op.nn.layer_norm(x, gamma, beta, axes=axes, epsilon=epsilon))
    outputs: list[Expr | None] = [node.cast(y, dtype(node.x))]
    if node.wants(1) or node.wants(2):
        mean = node.emit(relax.op.mean(x, axis=axes, keepdims=True))
        spread = node.emit(relax.op.subtract(x, mean))
        variance = relax.op.mean(relax.op.multiply(spread, spread), axis=axes, keepdims=True)
        deviation = relax.op.sqrt(relax.op.add(variance, const(epsilon, dtype(x))))
        outputs += [mean, node.emit(relax.op.divide(const(1.0, dtype(x)), deviation))]
    return (*outputs, *[None] * (3 - len(outputs)))


def instance_normalization(node: Node) -> Expr:
    x, scale, bias = (_wide(node, node.need(i)) for i in range(3))
    axes = list(range(2, rank(x)))
    result = relax.op.nn.instance_norm(x, scale, bias, channel_axis=1, axes=axes, epsilon=node.attr("epsilon", 1e-5))
    return node.cast(node.emit(result), dtype(node.x))


def group_normalization(node: Node) -> Expr:
    """With one scale and bias per channel, as from opset 21 on; ONNX's checker refuses the older form."""
    x, scale, bias = (_wide(node, node.need(i)) for i in range(3))
    groups, channels = node.attr("num_groups"), shape(x)[1]
    if rank(x) < 3 or channels % groups or shape(scale) != (channels,) or shape(bias) != (channels,):
        raise UseBody
    axes = list(range(2, rank(x)))
    result = relax.op.nn.group_norm(x, scale, bias, groups, 1, axes, node.attr("epsilon", 1e-5))
    return node.cast(node.emit(result), dtype(node.x))


def lrn(node: Node) -> Expr:
    """Across channels: x / (bias + alpha/size * sum of squares in the window)**beta."""
    x = _wide(node, node.x)
    size, alpha = node.attr("size"), node.attr("alpha", 1e-4)
    beta, bias = node.attr("beta", 0.75), node.attr("bias", 1.0)
    before = (size - 1) // 2
    channels = shape(x)[1]

    def squares(t: Any) -> Any:
        k = te.reduce_axis((0, size), name="k")

        def one(n: Any, c: Any, *at: Any) -> Any:
            other = c + k - before
            value = t(n, other, *at)
            inside = tirx.all(other >= 0, other < channels)
            return te.sum(tirx.if_then_else(inside, value * value, tirx.const(0, dtype(x))), axis=k)

        return te.compute(t.shape, one, name="squares")

    total = node.te(squares, x)
    scaled = relax.op.add(relax.op.multiply(total, const(alpha / size, dtype(x))), const(bias, dtype(x)))
    result = relax.op.divide(x, relax.op.power(scaled, const(beta, dtype(x))))
    return node.cast(node.emit(result), dtype(node.x))


def lp_normalization(node: Node) -> Expr:
    """x / its norm along an axis; a zero norm leaves zeros."""
    x = _wide(node, node.x)
    axis = [axis_in(node.attr("axis", -1), rank(x))]
    if node.attr("p", 2) == 1:
        norm = node.emit(relax.op.sum(relax.op.abs(x), axis=axis, keepdims=True))
    else:
        norm = node.emit(relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), axis=axis, keepdims=True)))
    zero = relax.op.equal(norm, const(0, dtype(x)))
    safe = node.emit(relax.op.where(zero, const(1, dtype(x)), norm))
    return node.cast(node.emit(relax.op.divide(x, safe)), dtype(node.x))


CONVERTERS: dict[str, Converter] = {
    "BatchNormalization": batch_normalization,
    "LayerNormalization": layer_normalization,
    "InstanceNormalization": instance_normalization,
    "GroupNormalization": group_normalization,
    "LRN": lrn,
    "LpNormalization": lp_normalization,
}
