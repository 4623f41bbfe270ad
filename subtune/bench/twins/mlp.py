"""The multi-layer perceptron in PyTorch."""

from __future__ import annotations

from typing import Any

from torch import nn

from subtune.bench.twins.weights import Weights


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    first, second, third = (weights.linear(f"fc{index}") for index in (1, 2, 3))
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), second, nn.ReLU(), third)
