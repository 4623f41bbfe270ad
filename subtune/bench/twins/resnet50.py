"""ResNet-50 in PyTorch, first version: the stride lies in the first 1x1 convolution."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights


def _conv_bn(weights: Weights, name: str, stride: int = 1, padding: int = 0) -> nn.Sequential:
    return nn.Sequential(weights.conv(name, stride=stride, padding=padding), weights.batch_norm(f"{name}_bn"))


class Bottleneck(nn.Module):
    def __init__(self, weights: Weights, name: str, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv_bn(weights, f"{name}_conv1", stride)
        self.conv2 = _conv_bn(weights, f"{name}_conv2", padding=1)
        self.conv3 = _conv_bn(weights, f"{name}_conv3")
        has_shortcut = f"{name}_sc.weight" in weights
        self.shortcut = _conv_bn(weights, f"{name}_sc", stride) if has_shortcut else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    channels_last = True

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.stem = _conv_bn(weights, "conv0", 2, 3)
        self.blocks = nn.Sequential(
            *(
                Bottleneck(weights, f"stage{stage}_unit{block}", 2 if stage > 1 and block == 1 else 1)
                for stage, blocks in enumerate((3, 4, 6, 3), 1)
                for block in range(1, blocks + 1)
            )
        )
        self.fc = weights.linear("fc")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = F.adaptive_avg_pool2d(self.blocks(x), 1)
        return self.fc(torch.flatten(x, 1))


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    return ResNet(weights)
