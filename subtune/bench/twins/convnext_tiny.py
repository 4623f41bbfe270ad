"""ConvNeXt-T in PyTorch, as torchvision writes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights

_EPSILON = 1e-6


class LayerNorm2d(nn.Module):
    """Over the channels of each pixel."""

    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        self.norm = weights.layer_norm(name, _EPSILON)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    def __init__(self, weights: Weights, name: str) -> None:
        super().__init__()
        channels = weights[f"{name}.block.0.weight"].shape[0]
        self.conv = weights.conv(f"{name}.block.0", padding=3, groups=channels)
        self.norm = weights.layer_norm(f"{name}.block.2", _EPSILON)
        self.widen, self.narrow = (weights.linear(f"{name}.block.{index}", is_transposed=True) for index in (3, 5))
        self.layer_scale = weights.parameter(f"{name}.layer_scale")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.widen(y))).permute(0, 3, 1, 2)
        return self.layer_scale * y + x


class ConvNeXt(nn.Module):
    channels_last = True

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        layers: list[nn.Module] = [weights.conv("features.0.0", stride=4), LayerNorm2d(weights, "features.0.1")]
        for stage, blocks in enumerate((3, 3, 9, 3)):
            if stage:
                layers.append(LayerNorm2d(weights, f"features.{2 * stage}.0"))
                layers.append(weights.conv(f"features.{2 * stage}.1", stride=2))
            layers += [Block(weights, f"features.{2 * stage + 1}.{index}") for index in range(blocks)]
        self.features = nn.Sequential(*layers)
        self.norm = LayerNorm2d(weights, "classifier.0")
        self.head = weights.linear("classifier.2")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(F.adaptive_avg_pool2d(self.features(x), 1))
        return self.head(torch.flatten(x, 1))


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    return ConvNeXt(weights)
