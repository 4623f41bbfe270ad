"""GPT-2's blocks in PyTorch, as the transformers library writes them, keys and values given back for its cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights


class Block(nn.Module):
    def __init__(self, weights: Weights, name: str, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = (weights.layer_norm(f"{name}.{part}", 1e-5) for part in ("ln_1", "ln_2"))
        self.c_attn, self.c_proj, self.c_fc, self.mlp_proj = (
            weights.linear(f"{name}.{part}", is_transposed=True)
            for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        parts = self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).flatten(2))
        y = F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")
        return x + self.mlp_proj(y), key, value


class GPT2(nn.Module):
    def __init__(self, weights: Weights, layers: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(weights, f"h.{index}", heads) for index in range(layers))
        self.ln_f = weights.layer_norm("ln_f", 1e-5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        present = []
        for block in self.blocks:
            x, key, value = block(x)
            present += [key, value]
        return self.ln_f(x), *present


def twin(weights: Weights, arguments: dict[str, Any]) -> nn.Module:
    return GPT2(weights, arguments["layers"], arguments["heads"])
