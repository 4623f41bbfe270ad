"""Normalisations, as the one operator each that the passes know."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx

from subtune.frontends.onnx.ops.node import Expr, axis_in, const, dtype, is_float, rank, shape
from subtune.frontends.relay.ops.call import Call, Converter
from subtune.frontends.relay.ops.layout import reshaped, transposed


def _wide(call: Call, x: Expr) -> Expr:
    if not is_float(x):
        call.refuse(f"has dtype {dtype(x)}, which is not supported")
    return call.cast(x, "float32") if dtype(x) in ("float16", "bfloat16") else x


def _parameters(call: Call, x: Expr, axis: int) -> tuple[Expr, Expr]:
    """Scale and shift along `axis`; ones and zeros where the attributes switch them off."""
    made = []
    for index, (name, neutral) in enumerate((("scale", 1.0), ("center", 0.0)), start=1):
        if not call.attr(name, True):
            made.append(const(np.full(shape(x)[axis], neutral), dtype(x)))
            continue
        made.append(_vector(call, call.arg(index), x, axis))
    return made[0], made[1]


def _vector(call: Call, value: Expr, x: Expr, axis: int) -> Expr:
    extent = shape(x)[axis]
    if int(np.prod(shape(value))) != extent:
        call.refuse(f"has a parameter of shape {list(shape(value))} for {extent} channels")
    return reshaped(call, call.cast(value, dtype(x)), (extent,))


def batch_norm(call: Call) -> tuple[Expr, Expr, Expr]:
    """The normalised data; mean and variance are those given, as in every graph for inference."""
    x = _wide(call, call.x)
    axis = axis_in(call.attr("axis", 1), rank(x))
    gamma, beta = _parameters(call, x, axis)
    mean, var = (_vector(call, call.arg(i), x, axis) for i in (3, 4))
    epsilon = float(call.attr("epsilon", 1e-5))
    result = call.emit(relax.op.nn.batch_norm(x, gamma, beta, mean, var, axis=axis, epsilon=epsilon, training=False))
    y = call.emit(relax.TupleGetItem(result, 0))
    return call.cast(y, dtype(call.x)), call.arg(3), call.arg(4)


def layer_norm(call: Call) -> Expr:
    x = _wide(call, call.x)
    axis = axis_in(call.attr("axis", -1), rank(x))
    gamma, beta = _parameters(call, x, axis)
    y = relax.op.nn.layer_norm(x, gamma, beta, axes=[axis], epsilon=float(call.attr("epsilon", 1e-5)))
    return call.cast(call.emit(y), dtype(call.x))


def instance_norm(call: Call) -> Expr:
    """Over everything but batch and channel."""
    x = _wide(call, call.x)
    axis = axis_in(call.attr("axis", 1), rank(x))
    gamma, beta = _parameters(call, x, axis)
    axes = [a for a in range(1, rank(x)) if a != axis]
    epsilon = float(call.attr("epsilon", 1e-5))
    y = relax.op.nn.instance_norm(x, gamma, beta, channel_axis=axis, axes=axes, epsilon=epsilon)
    return call.cast(call.emit(y), dtype(call.x))


def group_norm(call: Call) -> Expr:
    x = _wide(call, call.x)
    axis = axis_in(call.attr("axis", 1), rank(x))
    groups = int(call.attr("num_groups", 0))
    if groups < 1 or shape(x)[axis] % groups:
        call.refuse(f"has {groups} groups for {shape(x)[axis]} channels")
    gamma, beta = _parameters(call, x, axis)
    axes = [a for a in range(1, rank(x)) if a != axis]
    y = relax.op.nn.group_norm(x, gamma, beta, groups, axis, axes, float(call.attr("epsilon", 1e-5)))
    return call.cast(call.emit(y), dtype(call.x))


def l2_normalize(call: Call) -> Expr:
    """x / sqrt(max(sum of squares, eps)) along the axes."""
    x = _wide(call, call.x)
    given = call.attr("axis")
    given = [given] if isinstance(given, int) else given
    axes = [axis_in(a, rank(x)) for a in given] if given else list(range(rank(x)))
    total = relax.op.sum(relax.op.multiply(x, x), axis=axes, keepdims=True)
    root = call.emit(relax.op.sqrt(relax.op.maximum(total, const(call.attr("eps", 0.0), dtype(x)))))
    return call.cast(call.emit(relax.op.divide(x, root)), dtype(call.x))


def lrn(call: Call) -> Expr:
    """x / (bias + alpha/size * sum of squares within size // 2 along the axis) ** beta."""
    axis, size = axis_in(call.attr("axis", 1), rank(call.x)), int(call.attr("size", 5))
    order = [a for a in range(rank(call.x)) if a != axis] + [axis]  # last, as the convolutions around have it
    x = transposed(call, _wide(call, call.x), order)
    radius, extent = size // 2, shape(x)[-1]

    def squares(t: Any) -> Any:
        k = te.reduce_axis((0, 2 * radius + 1), name="k")

        def one(*i: Any) -> Any:
            at = i[-1] + k - radius
            value = t(*i[:-1], at)
            inside = tirx.all(at >= 0, at < extent)
            return te.sum(tirx.if_then_else(inside, value * value, tirx.const(0, dtype(x))), axis=k)

        return te.compute(t.shape, one, name="squares")

    scaled = relax.op.multiply(call.te(squares, x), const(call.attr("alpha", 1e-4) / size, dtype(x)))
    beta = const(call.attr("beta", 0.75), dtype(x))
    power = relax.op.power(relax.op.add(scaled, const(call.attr("bias", 2.0), dtype(x))), beta)
    y = transposed(call, call.emit(relax.op.divide(x, power)), [order.index(a) for a in range(rank(x))])
    return call.cast(y, dtype(call.x))


CONVERTERS: dict[str, Converter] = {
    "nn.batch_norm": batch_norm,
    "nn.layer_norm": layer_norm,
    "nn.instance_norm": instance_norm,
    "nn.group_norm": group_norm,
    "nn.l2_normalize": l2_normalize,
    "nn.lrn": lrn,
}
