"""A layer of the suite as its users write it in PyTorch, with the weights of its ONNX model."""

from __future__ import annotations

import json
from typing import Any

import onnx
import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.dietcode.cases import LAYER_KEY, WEIGHTS
from subtune.bench.torch_arrays import as_tensor
from subtune.bench.twins.weights import Weights


class DenseLayer(nn.Module):
    def __init__(self, weights: Weights, about: dict[str, Any]) -> None:
        super().__init__()
        self.linear = weights.linear(WEIGHTS, is_transposed=True)
        self._gelu = bool(about["gelu"])

    def forward(self, x: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        y = F.gelu(y) if self._gelu else y
        return y + added[0] if added else y


class ConvLayer(nn.Module):
    """Takes and gives images with their channels last, as PyTorch's `channels_last` has them in memory."""

    channels_last = images_last = True

    def __init__(self, weights: Weights, about: dict[str, Any]) -> None:
        super().__init__()
        self.conv = weights.conv(WEIGHTS, stride=about["stride"], padding=about["kernel"] // 2)

    def forward(self, x: torch.Tensor, *added: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x.permute(0, 3, 1, 2))
        y = y + added[0].permute(0, 3, 1, 2) if added else y
        return F.relu(y).permute(0, 2, 3, 1)


_KINDS: dict[str, Any] = {"Dense": DenseLayer, "Conv": ConvLayer}


def load_layer(path: str) -> nn.Module:
    """The module of the layer that the model's metadata says, ready for inference on a CPU."""
    model = onnx.load(path)
    about = json.loads(next(entry.value for entry in model.metadata_props if entry.key == LAYER_KEY))
    tensors = {t.name: as_tensor(onnx.numpy_helper.to_array(t).copy()) for t in model.graph.initializer}
    return _KINDS[about["kind"]](Weights(tensors), about).eval().requires_grad_(False)
