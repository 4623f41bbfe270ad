"""The small U-Net in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights


def _double_conv(weights: Weights, name: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index in (0, 1):
        layers += [weights.conv(f"{name}.conv{index}", padding=1), weights.instance_norm(f"{name}.norm{index}")]
        layers.append(nn.LeakyReLU(0.01, inplace=True))
    return nn.Sequential(*layers)


def _upsample(weights: Weights, name: str, kind: str) -> nn.Module:
    if kind == "resize":
        grown = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        return nn.Sequential(grown, weights.conv(name))
    return weights.conv_transpose(name, stride=2)


class UNet(nn.Module):
    channels_last = True

    def __init__(self, weights: Weights, levels: int, upsample: str) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(_double_conv(weights, f"encoder.{level}") for level in range(levels))
        self.bottleneck = _double_conv(weights, "bottleneck")
        inwards = range(levels - 1, -1, -1)
        self.ups = nn.ModuleList(_upsample(weights, f"up.{level}", upsample) for level in inwards)
        self.decoders = nn.ModuleList(_double_conv(weights, f"decoder.{level}") for level in inwards)
        self.head = weights.conv("head")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for encoder in self.encoders:
            x = encoder(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.bottleneck(x)
        for up, decoder in zip(self.ups, self.decoders, strict=True):
            x = decoder(torch.cat([skips.pop(), up(x)], 1))
        return torch.sigmoid(self.head(x))


def twin(weights: Weights, arguments: dict[str, Any]) -> nn.Module:
    return UNet(weights, arguments["levels"], arguments["upsample"])
