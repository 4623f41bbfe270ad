"""Stacked LSTM classifier as torch.onnx wrote it: LSTM with initial states, last step, Gemm, opset 9."""

from __future__ import annotations

import math

import numpy as np
import onnx

from subtune.models.builder import Builder


def build(
    batch: int = 1,
    dtype: str = "float32",
    seq: int = 64,
    features: int = 64,
    hidden: int = 256,
    layers: int = 2,
    classes: int = 10,
    bidirectional: bool = False,
) -> onnx.ModelProto:
    """Input `input` (batch, seq, features), output `output` (batch, classes), from the last step."""
    g = Builder("lstm", opset=9, dtype=dtype)
    x = g.op("Transpose", g.input("input", (batch, seq, features)), perm=(1, 0, 2))
    cin = features
    for layer in range(layers):
        x = _layer(g, f"lstm.{layer}", x, (seq, batch, cin, hidden), bidirectional)
        cin = hidden * (2 if bidirectional else 1)
    # batch_first: torch transposes back before the last step is taken
    x = g.op("Transpose", x, perm=(1, 0, 2))
    # opset 9's Gather takes no negative index, so the exporter wrote the last one out
    x = g.op("Gather", x, g.constant(seq - 1, "int64"), axis=1)
    g.gemm("fc", x, cin, classes, out="output")
    g.output("output", (batch, classes))
    return g.finish()


def _layer(g: Builder, name: str, x: str, dims: tuple[int, int, int, int], bidirectional: bool) -> str:
    """From (seq, batch, features) to (seq, batch, directions * hidden); `dims` ends in features, hidden."""
    seq, batch, cin, hidden = dims
    directions = 2 if bidirectional else 1
    weight = g.normal(f"{name}.W", (directions, 4 * hidden, cin), 1.0 / math.sqrt(cin))
    recurrence = g.normal(f"{name}.R", (directions, 4 * hidden, hidden), 1.0 / math.sqrt(hidden))
    bias = g.normal(f"{name}.B", (directions, 8 * hidden), 0.1)
    state = np.zeros((directions, batch, hidden), np.float32)
    h0, c0 = g.weight(f"{name}.initial_h", state), g.weight(f"{name}.initial_c", state)
    y, _, _ = g.multi(
        "LSTM",
        *(x, weight, recurrence, bias, "", h0, c0),
        outputs=(None, None, None),
        direction="bidirectional" if bidirectional else "forward",
        hidden_size=hidden,
    )
    if not bidirectional:
        return g.op("Squeeze", y, axes=(1,))
    y = g.op("Transpose", y, perm=(0, 2, 1, 3))
    return g.op("Reshape", y, g.constant((seq, batch, 2 * hidden), "int64"))
