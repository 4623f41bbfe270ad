"""SqueezeNet 1.1 in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights


class Fire(nn.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        self.squeeze = weights.conv(f"{name}.squeeze")
        self.expand1x1 = weights.conv(f"{name}.expand1x1")
        self.expand3x3 = weights.conv(f"{name}.expand3x3", padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    channels_last = True

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        layers: list[nn.Module] = [weights.conv("features.0", stride=2), nn.ReLU(inplace=True)]
        for fires in (2, 2, 4):
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            for _index in range(fires):
                layers.append(Fire(weights, f"features.{len(layers)}"))
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout()
        self.classifier = weights.conv("classifier.1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.classifier(self.dropout(self.features(x))))
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    return SqueezeNet(weights)
