"""Vision transformer (ViT-B/16) as new torch.onnx writes it: class token, Gelu, LayerNormalization, opset 20.

Structure of timm's VisionTransformer: pre-norm blocks, one QKV product taken apart by Reshape, Transpose,
Gather.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import Builder

# Gain of the projections into the residual stream, which keeps it O(1) over the blocks.
_RESIDUAL_GAIN = 0.5


def build(
    batch: int = 1,
    dtype: str = "float32",
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    image: int = 224,
    patch: int = 16,
    classes: int = 1000,
) -> onnx.ModelProto:
    """Input `x` (batch, 3, image, image), output `logits` (batch, classes).

    Raises:
        ModelError: `heads` does not divide `hidden`, or `patch` does not divide `image`.
    """
    if hidden % heads:
        raise ModelError(f"zoo model vit: heads={heads} does not divide hidden={hidden}")
    if image % patch:
        raise ModelError(f"zoo model vit: patch={patch} does not divide image={image}")
    g = Builder("vit", opset=20, dtype=dtype)
    tokens = (image // patch) ** 2 + 1
    x = _patches(g, g.input("x", (batch, 3, image, image)), batch, hidden, patch, tokens)
    for layer in range(layers):
        name = f"blocks.{layer}"
        y = g.layer_norm(f"{name}.norm1", x, hidden, epsilon=1e-6)
        x = g.op("Add", x, _attention(g, f"{name}.attn", y, (batch, tokens, heads, hidden // heads)))
        y = g.layer_norm(f"{name}.norm2", x, hidden, epsilon=1e-6)
        y = g.op("Gelu", g.linear(f"{name}.mlp.fc1", y, hidden, 4 * hidden), approximate="none")
        x = g.op("Add", x, g.linear(f"{name}.mlp.fc2", y, 4 * hidden, hidden, gain=_RESIDUAL_GAIN))
    x = g.layer_norm("norm", x, hidden, epsilon=1e-6)
    x = g.op("Gather", x, g.constant(0, "int64"), axis=1)
    g.gemm("head", x, hidden, classes, out="logits")
    g.output("logits", (batch, classes))
    return g.finish()


def _patches(g: Builder, x: str, batch: int, hidden: int, patch: int, tokens: int) -> str:
    """Patch embedding (batch, tokens, hidden): the class token first, positions added."""
    weight = g.normal("patch_embed.proj.weight", (hidden, 3, patch, patch), 1.0 / math.sqrt(3 * patch * patch))
    bias = g.normal("patch_embed.proj.bias", (hidden,), 0.1)
    square = (patch, patch)
    x = g.op("Conv", x, weight, bias, kernel_shape=square, pads=(0, 0, 0, 0), strides=square)
    x = g.op("Reshape", x, g.constant((batch, hidden, -1), "int64"))
    x = g.op("Transpose", x, perm=(0, 2, 1))
    token = g.normal("cls_token", (1, 1, hidden), 1.0)
    token = g.op("Expand", token, g.constant((batch, 1, hidden), "int64"))
    x = g.op("Concat", token, x, axis=1)
    return g.op("Add", x, g.normal("pos_embed", (1, tokens, hidden), 0.5))


def _attention(g: Builder, name: str, x: str, dims: tuple[int, int, int, int]) -> str:
    """Self-attention; `dims` = (batch, tokens, heads, head size)."""
    batch, tokens, heads, size = dims
    hidden = heads * size
    qkv = g.linear(f"{name}.qkv", x, hidden, 3 * hidden)
    qkv = g.op("Reshape", qkv, g.constant((batch, tokens, 3, heads, size), "int64"))
    qkv = g.op("Transpose", qkv, perm=(2, 0, 3, 1, 4))
    query, key, value = (g.op("Gather", qkv, g.constant(i, "int64"), axis=0) for i in range(3))
    # scaled_dot_product_attention is exported with the scale split between both operands
    root = g.constant(size**-0.25)
    query = g.op("Mul", query, root)
    key = g.op("Mul", g.op("Transpose", key, perm=(0, 1, 3, 2)), root)
    weights = g.op("Softmax", g.op("MatMul", query, key), axis=-1)
    y = g.op("Transpose", g.op("MatMul", weights, value), perm=(0, 2, 1, 3))
    y = g.op("Reshape", y, g.weight(f"{name}.shape", np.array((batch, tokens, hidden), np.int64)))
    return g.linear(f"{name}.proj", y, hidden, hidden, gain=_RESIDUAL_GAIN)
