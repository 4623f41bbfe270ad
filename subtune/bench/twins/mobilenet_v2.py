"""MobileNetV2 in PyTorch, normalisations folded as in the file."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights

# blocks, stride of the first
_STAGES = ((1, 1), (2, 2), (3, 2), (4, 2), (3, 1), (3, 2), (1, 1))


class InvertedResidual(nn.Module):
    def __init__(self, weights: Weights, name: str, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if f"{name}.conv.0.0.weight" in weights:
            layers += [weights.conv(f"{name}.conv.0.0"), nn.ReLU6(inplace=True)]
        middle = weights[f"{name}.conv.1.0.weight"].shape[0]
        layers += [weights.conv(f"{name}.conv.1.0", stride=stride, padding=1, groups=middle), nn.ReLU6(inplace=True)]
        project = weights.conv(f"{name}.conv.2")
        self.conv = nn.Sequential(*layers, project)
        first = layers[0]
        assert isinstance(first, nn.Conv2d)
        self.is_residual = stride == 1 and first.in_channels == project.out_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x) if self.is_residual else self.conv(x)


class MobileNetV2(nn.Module):
    channels_last = True

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        strides = [first if block == 0 else 1 for blocks, first in _STAGES for block in range(blocks)]
        blocks = (InvertedResidual(weights, f"features.{i}", stride) for i, stride in enumerate(strides, 1))
        stem, head = weights.conv("features.0.0", stride=2, padding=1), weights.conv(f"features.{len(strides) + 1}.0")
        self.features = nn.Sequential(stem, nn.ReLU6(inplace=True), *blocks, head, nn.ReLU6(inplace=True))
        self.classifier = weights.linear("classifier.1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(self.features(x), 1)
        return self.classifier(torch.flatten(x, 1))


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    return MobileNetV2(weights)
