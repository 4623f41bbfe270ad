"""Operators of the domain com.microsoft that ONNX Runtime's optimiser writes into transformer models."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

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


CONVERTERS: dict[str, Converter] = {
    "Gelu": gelu(relax.op.nn.gelu, biased=False),
    "BiasGelu": gelu(relax.op.nn.gelu, biased=True),
    "FastGelu": gelu(relax.op.nn.gelu_tanh, biased=True),
    "QuickGelu": quick_gelu,
    "SkipLayerNormalization": skip_layer_normalization,
}
