"""The vision transformer in PyTorch, as timm writes it: joined projections, scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights

_EPSILON = 1e-6


class Block(nn.Module):
    def __init__(self, weights: Weights, name: str, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (weights.layer_norm(f"{name}.{part}", _EPSILON) for part in ("norm1", "norm2"))
        self.qkv, self.proj, self.fc1, self.fc2 = (
            weights.linear(f"{name}.{part}", is_transposed=True)
            for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        joined = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = joined.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(query, key, value)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self, weights: Weights, layers: int, heads: int, patch: int) -> None:
        super().__init__()
        self.patch_embed = weights.conv("patch_embed.proj", stride=patch)
        self.cls_token, self.pos_embed = weights.parameter("cls_token"), weights.parameter("pos_embed")
        self.blocks = nn.Sequential(*(Block(weights, f"blocks.{index}", heads) for index in range(layers)))
        self.norm = weights.layer_norm("norm", _EPSILON)
        self.head = weights.linear("head")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def twin(weights: Weights, arguments: dict[str, Any]) -> nn.Module:
    return ViT(weights, arguments["layers"], arguments["heads"], arguments["patch"])
