"""Operators of the domain com.microsoft that ONNX Runtime's optimiser writes into transformer models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import relax

from subtune.frontends.onnx.ops import activation, conv, elementwise, linear, unary
from subtune.frontends.onnx.ops.node import Converter, Expr, Node, const, dtype, is_float, rank, shape


def _sum(node: Node, *parts: Expr | None) -> Expr:
    """The sum in float32 (float64) of the parts that are given."""
    total: Expr = None
    for part in parts:
        if part is None:
            continue
        if not is_float(part):
            node.refuse(f"has dtype {dtype(part)}, which is not supported")
        wide = node.cast(part, "float32") if dtype(part) in ("float16", "bfloat16") else part
        total = wide if total is None else node.emit(relax.op.add(total, wide))
    return total


def gelu(op: Callable[..., Expr], biased: bool) -> Converter:
    def convert(node: Node) -> Expr:
        x = _sum(node, node.x, node.get(1) if biased else None)
        return node.cast(node.emit(op(x)), dtype(node.x))

    return convert


def quick_gelu(node: Node) -> Expr:
    x = _sum(node, node.x)
    gate = relax.op.sigmoid(relax.op.multiply(x, const(node.attr("alpha", 1.702), dtype(x))))
    return node.cast(node.emit(relax.op.multiply(x, gate)), dtype(node.x))


def skip_layer_normalization(node: Node) -> tuple[Expr | None, ...]:
    """Normalises input + skip + bias over the last axis; outputs 1 and 2 are unused, 3 is the sum."""
    total = _sum(node, node.x, node.need(1), node.get(4))
    if shape(total) != shape(node.x):
        node.refuse(f"adds shape {list(shape(node.need(1)))} to {list(shape(node.x))}")
    if node.wants(1) or node.wants(2):
        node.refuse("gives its mean or inverse deviation")
    tail = shape(total)[-1:]
    gamma = _sum(node, node.need(2))
    beta = _sum(node, node.get(3))
    if beta is None:
        beta = node.emit(relax.op.zeros(tail, dtype(total)))
    epsilon = node.attr("epsilon", 1e-12)
    y = node.emit(relax.op.nn.layer_norm(total, gamma, beta, axes=[rank(total) - 1], epsilon=epsilon))
    return node.cast(y, dtype(node.x)), None, None, node.cast(total, dtype(node.x))


_BY_ATTRIBUTES = 6
"""An opset in which Clip has its limits as attributes."""

_ACTIVATIONS: dict[str, tuple[Converter, tuple[str, ...]]] = {
    "": (elementwise.identity, ()),
    "Clip": (elementwise.clip, ("min", "max")),
    "HardSigmoid": (activation.CONVERTERS["HardSigmoid"], ("alpha", "beta")),
    "LeakyRelu": (activation.leaky_relu, ("alpha",)),
    "Relu": (activation.relu, ()),
    "Sigmoid": (activation.CONVERTERS["Sigmoid"], ()),
    "Tanh": (unary.CONVERTERS["Tanh"], ()),
}


def fused_matmul(node: Node) -> Expr:
    """alpha * A' B', of which the last two axes may be swapped (and, by transBatchA, which nobody writes, others)."""
    if node.attr("transBatchA", 0) or node.attr("transBatchB", 0):
        node.refuse("transposes its batch")
    a, b = (
        node.emit(relax.op.permute_dims(x, [*range(rank(x) - 2), rank(x) - 1, rank(x) - 2])) if swapped else x
        for x, swapped in ((node.x, node.attr("transA", 0)), (node.need(1), node.attr("transB", 0)))
    )
    y = linear.product(node, a, b)
    alpha = node.attr("alpha", 1.0)
    return y if alpha == 1.0 else relax.op.multiply(y, const(alpha, dtype(y)))


def fused(plain: Converter, inputs: int) -> Converter:
    """An operator with an activation behind it; a Conv may have a sum before that."""

    def convert(node: Node) -> Expr:
        y = node.emit(plain(node))
        if node.get(inputs) is not None:
            y = node.emit(relax.op.add(y, node.get(inputs)))
        name = node.attr("activation", "")
        if name not in _ACTIVATIONS:
            node.refuse(f"has the activation {name}")
        converter, parameters = _ACTIVATIONS[name]
        # A Conv has them in one list, a Gemm as attributes of their own.
        attrs = dict(zip(parameters, node.attr("activation_params") or (), strict=False))
        attrs |= {key: node.attrs[f"activation_{key}"] for key in parameters if f"activation_{key}" in node.attrs}
        return converter(replace(node, op=name, opset=_BY_ATTRIBUTES, inputs=(y,), attrs=attrs))

    return convert


CONVERTERS: dict[str, Converter] = {
    "Gelu": gelu(relax.op.nn.gelu, biased=False),
    "BiasGelu": gelu(relax.op.nn.gelu, biased=True),
    "FastGelu": gelu(relax.op.nn.gelu_tanh, biased=True),
    "QuickGelu": quick_gelu,
    "FusedConv": fused(conv.conv, 3),
    "FusedGemm": fused(linear.gemm, 3),
    "FusedMatMul": fused_matmul,
    "SkipLayerNormalization": skip_layer_normalization,
}
