"""EfficientNet-Lite0 in PyTorch, fed with the pixels' channels last and padded as TensorFlow does."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights

# blocks, stride of the first
_STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))


class Block(nn.Module):
    def __init__(self, weights: Weights, name: str, stride: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if f"{name}/conv2d.weight" in weights:
            layers += [weights.conv(f"{name}/conv2d"), nn.ReLU6(inplace=True)]
        middle = weights[f"{name}/depthwise.weight"].shape[0]
        depthwise = weights.conv(f"{name}/depthwise", stride=stride, groups=middle, same=True)
        project = weights.conv(f"{name}/conv2d_1")
        self.layers = nn.Sequential(*layers, depthwise, nn.ReLU6(inplace=True), project)
        first = self.layers[0]
        assert isinstance(first, nn.Conv2d)
        self.is_residual = stride == 1 and first.in_channels == project.out_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) + x if self.is_residual else self.layers(x)


class EfficientNet(nn.Module):
    channels_last = True
    images_last = True

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        strides = [first if block == 0 else 1 for blocks, first in _STAGES for block in range(blocks)]
        blocks = (Block(weights, f"blocks_{index}", stride) for index, stride in enumerate(strides))
        stem = weights.conv("stem/conv2d", stride=2, same=True)
        head = weights.conv("head/conv2d")
        self.features = nn.Sequential(stem, nn.ReLU6(inplace=True), *blocks, head, nn.ReLU6(inplace=True))
        self.classifier = weights.linear("head/dense", is_transposed=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.adaptive_avg_pool2d(self.features(images.permute(0, 3, 1, 2)), 1)
        return F.softmax(self.classifier(torch.flatten(x, 1)), dim=1)


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    return EfficientNet(weights)
