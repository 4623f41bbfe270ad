"""A recurrent layer whole: what its function says of itself, and its call where a device computes it in own kernels."""

from __future__ import annotations

ATTR = "subtune.recurrence"
"""Attribute of a Relax function that computes a layer step by step: `cell` (LSTM, GRU, RNN), `direction`,
`activations` of a direction in ONNX's order, `inputs`: which of ONNX's its parameters are."""
SYMBOL = "subtune.recurrence"
"""What `relax.call_dps_packed` calls in its place: (projected, recurrent weights, recurrent bias, initial states...,
lengths if `has_lengths`) -> (all hidden states, last states...), with the attributes `cell`, `direction` and
`activations`. Shapes, where D is directions and G gates: [steps, batch, D*G*hidden], [D, G*hidden, hidden],
[D, G*hidden], [D, batch, hidden] each, [batch]; [steps, D, batch, hidden], [D, batch, hidden] each."""
ACTIVATIONS = ("sigmoid", "tanh", "relu")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
