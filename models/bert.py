"""BERT encoder as old torch.onnx wrote it: decomposed GELU and LayerNormalization, embeddings, opset 11.

Structure of BertModel of the transformers library with static shapes; base (12 layers, 768 hidden, 12 heads)
by default.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import Builder


def build(
    batch: int = 1,
    dtype: str = "float32",
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    seq: int = 128,
    vocab: int = 30522,
    positions: int = 512,
) -> onnx.ModelProto:
    """Inputs `input_ids`, `attention_mask`, `token_type_ids` (batch, seq), int64.

    Outputs `last_hidden_state` (batch, seq, hidden) and `pooler_output` (batch, hidden). The feed-forward
    layers are 4 x hidden wide.

    Raises:
        ModelError: `heads` does not divide `hidden`, or `seq` exceeds `positions`.
    """
    if hidden % heads:
        raise ModelError(f"zoo model bert: heads={heads} does not divide hidden={hidden}")
    if seq > positions:
        raise ModelError(f"zoo model bert: seq={seq} exceeds positions={positions}, the rows of the position table")
    g = Builder("bert", opset=11, dtype=dtype)
    ids = g.input("input_ids", (batch, seq), "int64")
    mask = g.input("attention_mask", (batch, seq), "int64")
    types = g.input("token_type_ids", (batch, seq), "int64")

    bias = _mask_bias(g, mask)
    x = _embeddings(g, ids, types, hidden, seq, vocab, positions)
    for layer in range(layers):
        name = f"encoder.layer.{layer}"
        y = _attention(g, f"{name}.attention", x, bias, (batch, seq, heads, hidden // heads))
        x = _layer_norm(g, f"{name}.attention.output.LayerNorm", g.op("Add", y, x), hidden)
        y = _gelu(g, g.linear(f"{name}.intermediate.dense", x, hidden, 4 * hidden))
        y = g.linear(f"{name}.output.dense", y, 4 * hidden, hidden)
        last = layer == layers - 1
        out = "last_hidden_state" if last else None
        x = _layer_norm(g, f"{name}.output.LayerNorm", g.op("Add", y, x), hidden, out=out)
    first = g.op("Gather", x, g.constant(0, "int64"), axis=1)
    g.op("Tanh", g.gemm("pooler.dense", first, hidden, hidden), out="pooler_output")
    g.output("last_hidden_state", (batch, seq, hidden))
    g.output("pooler_output", (batch, hidden))
    return g.finish()


def _mask_bias(g: Builder, mask: str) -> str:
    """(1 - mask) * -10000, of shape (batch, 1, 1, seq)."""
    wide = g.op("Unsqueeze", g.op("Unsqueeze", mask, axes=(1,)), axes=(2,))
    kept = g.op("Cast", wide, to=onnx.helper.np_dtype_to_tensor_dtype(g.dtype))
    return g.op("Mul", g.op("Sub", g.constant(1.0), kept), g.constant(-10000.0))


def _embeddings(g: Builder, ids: str, types: str, hidden: int, seq: int, vocab: int, positions: int) -> str:
    words = g.op("Gather", g.normal("embeddings.word_embeddings.weight", (vocab, hidden), 1.0), ids)
    places = g.constant(np.arange(seq)[None], "int64")
    place = g.op("Gather", g.normal("embeddings.position_embeddings.weight", (positions, hidden), 0.5), places)
    kind = g.op("Gather", g.normal("embeddings.token_type_embeddings.weight", (2, hidden), 0.5), types)
    return _layer_norm(g, "embeddings.LayerNorm", g.op("Add", g.op("Add", words, place), kind), hidden)


def _attention(g: Builder, name: str, x: str, bias: str, dims: tuple[int, int, int, int]) -> str:
    """Multi-head self-attention with output projection; `dims` = (batch, seq, heads, head size)."""
    size = dims[3]
    hidden = dims[2] * size

    def split_heads(part: str, perm: tuple[int, ...]) -> str:
        y = g.linear(f"{name}.self.{part}", x, hidden, hidden)
        return g.op("Transpose", g.op("Reshape", y, g.constant(dims, "int64")), perm=perm)

    query = split_heads("query", (0, 2, 1, 3))
    key = split_heads("key", (0, 2, 3, 1))  # transposed already, as the exporter merges the two transpositions
    value = split_heads("value", (0, 2, 1, 3))
    scores = g.op("Div", g.op("MatMul", query, key), g.constant(math.sqrt(size)))
    weights = g.op("Softmax", g.op("Add", scores, bias), axis=3)
    context = g.op("Transpose", g.op("MatMul", weights, value), perm=(0, 2, 1, 3))
    context = g.op("Reshape", context, g.constant((*dims[:2], hidden), "int64"))
    return g.linear(f"{name}.output.dense", context, hidden, hidden)


def _gelu(g: Builder, x: str) -> str:
    """x * (erf(x / sqrt(2)) + 1) * 0.5."""
    erf = g.op("Erf", g.op("Div", x, g.constant(math.sqrt(2.0))))
    return g.op("Mul", g.op("Mul", x, g.op("Add", erf, g.constant(1.0))), g.constant(0.5))


def _layer_norm(g: Builder, name: str, x: str, size: int, out: str | None = None) -> str:
    """(x - mean) / sqrt(mean((x - mean)^2) + epsilon) * scale + bias over the last axis."""
    # BERT's 1e-12 would round to zero in float16
    epsilon = 1e-12 if g.dtype == np.float32 else 1e-5
    scale, bias = g.norm_parameters(name, size)
    centred = g.op("Sub", x, g.op("ReduceMean", x, axes=(-1,), keepdims=1))
    variance = g.op("ReduceMean", g.op("Pow", centred, g.constant(2.0)), axes=(-1,), keepdims=1)
    deviation = g.op("Sqrt", g.op("Add", variance, g.constant(epsilon)))
    return g.op("Add", g.op("Mul", g.op("Div", centred, deviation), scale), bias, out=out)
