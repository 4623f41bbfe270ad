"""VGG-16 in PyTorch."""

from __future__ import annotations

from typing import Any

from torch import nn

from subtune.bench.twins.weights import Weights


class VGG(nn.Sequential):
    channels_last = True


def twin(weights: Weights, _: dict[str, Any]) -> nn.Module:
    layers: list[nn.Module] = []
    for convolutions in (2, 2, 3, 3, 3):
        for _index in range(convolutions):
            layers += [weights.conv(f"features.{len(layers)}", padding=1), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(2))
    classifier: list[nn.Module] = [nn.Flatten()]
    for index in (0, 3):
        classifier += [weights.linear(f"classifier.{index}"), nn.ReLU(inplace=True), nn.Dropout()]
    return VGG(*layers, *classifier, weights.linear("classifier.6"))
