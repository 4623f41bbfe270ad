"""ResNet-18 in PyTorch, normalisations folded as in the file."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights


class BasicBlock(nn.Module):
    def __init__(self, weights: Weights, name: str, stride: int) -> None:
        super().__init__()
        self.conv1 = weights.conv(f"{name}.conv1", stride=stride, padding=1)
        self.conv2 = weights.conv(f"{name}.conv2", padding=1)
        shortcut = f"{name}.downsample.0"
        has_shortcut = f"{shortcut}.weight" in weights
        self.downsample = weights.conv(shortcut, stride=stride) if has_shortcut else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.downsample(x))


class ResNet(nn.Module):
    channels_last = True

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.conv1 = weights.conv("conv1", stride=2, padding=3)
        self.layers = nn.Sequential(
            *(
                BasicBlock(weights, f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1)
                for stage in (1, 2, 3, 4)
                for block in (0, 1)
            )
        )
        self.fc = weights.linear("fc")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 3, 2, 1)
        x = F.adaptive_avg_pool2d(self.layers(x), 1)
        return self.fc(torch.flatten(x, 1))


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    return ResNet(weights)
