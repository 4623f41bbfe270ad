"""The LSTM classifier in PyTorch: nn.LSTM, the last step, a linear layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from subtune.bench.twins.weights import Weights


class Classifier(nn.Module):
    def __init__(self, weights: Weights, arguments: dict[str, Any]) -> None:
        super().__init__()
        options = {"batch_first": True, "bidirectional": arguments["bidirectional"], "device": "meta"}
        self.lstm = nn.LSTM(arguments["features"], arguments["hidden"], arguments["layers"], **options)
        state: dict[str, torch.Tensor] = {}
        for layer in range(arguments["layers"]):
            for way, suffix in enumerate(("", "_reverse") if arguments["bidirectional"] else ("",)):
                part = {kind: weights[f"lstm.{layer}.{kind}"][way] for kind in "WRB"}
                before, after = part["B"].chunk(2)
                named = {"weight_ih": part["W"], "weight_hh": part["R"], "bias_ih": before, "bias_hh": after}
                state |= {f"{key}_l{layer}{suffix}": _in_torch_order(tensor) for key, tensor in named.items()}
        self.lstm.load_state_dict(state, assign=True)
        self.fc = weights.linear("fc")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps, _ = self.lstm(x)
        return self.fc(steps[:, -1])


def _in_torch_order(gates: torch.Tensor) -> torch.Tensor:
    """ONNX has input, output, forget, cell; PyTorch input, forget, cell, output."""
    i, o, f, c = gates.chunk(4)
    return torch.cat([i, f, c, o])


def twin(weights: Weights, arguments: dict[str, Any]) -> nn.Module:
    return Classifier(weights, arguments)
