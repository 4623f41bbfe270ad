"""GPT-2 blocks: fused QKV with Split, causal Where mask, decomposed tanh GELU, LayerNormalization, opset 17.

Works on hidden states, without the embedding tables, and gives the keys and values of each block as further
outputs, as the transformers library exports GPT2Block with its cache. One block of GPT-2 small by default.
"""

from __future__ import annotations

import math

import numpy as np
import onnx

from subtune.core.errors import ModelError
from subtune.models.builder import Builder

# GPT-2 scales projections into the residual stream down by 1/sqrt(2 layers); one value serves all depths
# here.
_RESIDUAL_GAIN = 0.5


def build(
    batch: int = 1,
    dtype: str = "float32",
    layers: int = 1,
    hidden: int = 768,
    heads: int = 12,
    seq: int = 128,
    context: int = 1024,
) -> onnx.ModelProto:
    """Input `hidden_states` (batch, seq, hidden), output `last_hidden_state` alike, after a final LayerNorm.

    Further outputs `present.N.key` and `present.N.value` (batch, heads, seq, hidden / heads). `context` is
    the extent of the causal mask that is cut to `seq`.

    Raises:
        ModelError: `heads` does not divide `hidden`, or `seq` exceeds `context`.
    """
    if hidden % heads:
        raise ModelError(f"zoo model gpt2: heads={heads} does not divide hidden={hidden}")
    if seq > context:
        raise ModelError(f"zoo model gpt2: seq={seq} exceeds context={context}")
    g = Builder("gpt2", opset=17, dtype=dtype)
    x = g.input("hidden_states", (batch, seq, hidden))
    causal = g.weight("causal_mask", np.tril(np.ones((1, 1, context, context), np.bool_)))
    dims = (batch, seq, heads, hidden // heads)
    for layer in range(layers):
        name = f"h.{layer}"
        y = g.layer_norm(f"{name}.ln_1", x, hidden)
        x = g.op("Add", _attention(g, f"{name}.attn", y, causal, dims, f"present.{layer}"), x)
        y = g.layer_norm(f"{name}.ln_2", x, hidden)
        y = _gelu(g, _conv1d(g, f"{name}.mlp.c_fc", y, dims[:2], hidden, 4 * hidden, 1.0))
        x = g.op("Add", x, _conv1d(g, f"{name}.mlp.c_proj", y, dims[:2], 4 * hidden, hidden, _RESIDUAL_GAIN))
    g.layer_norm("ln_f", x, hidden, out="last_hidden_state")
    g.output("last_hidden_state", (batch, seq, hidden))
    for layer in range(layers):
        for part in ("key", "value"):
            g.output(f"present.{layer}.{part}", (batch, heads, seq, hidden // heads))
    return g.finish()


def _attention(g: Builder, name: str, x: str, causal: str, dims: tuple[int, int, int, int], present: str) -> str:
    """Causal self-attention; `dims` = (batch, seq, heads, head size)."""
    seq, size = dims[1], dims[3]
    hidden = dims[2] * size
    qkv = _conv1d(g, f"{name}.c_attn", x, dims[:2], hidden, 3 * hidden, 1.0)
    parts = g.multi("Split", qkv, g.constant([hidden] * 3, "int64"), axis=2, outputs=(None, None, None))

    def split_heads(part: str, out: str | None = None) -> str:
        return g.op("Transpose", g.op("Reshape", part, g.constant(dims, "int64")), perm=(0, 2, 1, 3), out=out)

    query = split_heads(parts[0])
    key = split_heads(parts[1], f"{present}.key")
    value = split_heads(parts[2], f"{present}.value")
    scores = g.op("MatMul", query, g.op("Transpose", key, perm=(0, 1, 3, 2)))
    scores = g.op("Div", scores, g.constant(math.sqrt(size)))
    scores = g.op("Where", _cut(g, causal, seq), scores, g.constant(float(np.finfo(g.dtype).min)))
    weights = g.op("Softmax", scores, axis=-1)
    y = g.op("Transpose", g.op("MatMul", weights, value), perm=(0, 2, 1, 3))
    y = g.op("Reshape", y, g.constant((*dims[:2], hidden), "int64"))
    return _conv1d(g, f"{name}.c_proj", y, dims[:2], hidden, hidden, _RESIDUAL_GAIN)


def _cut(g: Builder, causal: str, seq: int) -> str:
    """The leading (seq, seq) of the causal mask, one Slice per axis."""
    for axis in (2, 3):
        bounds = (g.constant([value], "int64") for value in (0, seq, axis, 1))
        causal = g.op("Slice", causal, *bounds)
    return causal


def _conv1d(g: Builder, name: str, x: str, rows: tuple[int, ...], cin: int, cout: int, gain: float) -> str:
    """GPT-2's Conv1D: Reshape to two axes, Gemm with weights (cin, cout), Reshape back."""
    weight = g.normal(f"{name}.weight", (cin, cout), gain / math.sqrt(cin))
    bias = g.normal(f"{name}.bias", (cout,), 0.1)
    flat = g.op("Reshape", x, g.constant((-1, cin), "int64"))
    y = g.op("Gemm", flat, weight, bias, alpha=1.0, beta=1.0)
    return g.op("Reshape", y, g.constant((*rows, cout), "int64"))


def _gelu(g: Builder, x: str) -> str:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))."""
    cubic = g.op("Mul", g.op("Pow", x, g.constant(3.0)), g.constant(0.044715))
    inner = g.op("Mul", g.op("Add", x, cubic), g.constant(math.sqrt(2.0 / math.pi)))
    return g.op("Mul", g.op("Mul", x, g.constant(0.5)), g.op("Add", g.op("Tanh", inner), g.constant(1.0)))
