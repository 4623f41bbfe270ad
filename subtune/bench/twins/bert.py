"""BERT in PyTorch, as the transformers library writes it with scaled_dot_product_attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from subtune.bench.twins.weights import Weights


class Layer(nn.Module):
    def __init__(self, weights: Weights, name: str, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        attention = f"{name}.attention"
        self.query, self.key, self.value = (
            weights.linear(f"{attention}.self.{part}", is_transposed=True) for part in ("query", "key", "value")
        )
        self.project = weights.linear(f"{attention}.output.dense", is_transposed=True)
        self.attention_norm = weights.layer_norm(f"{attention}.output.LayerNorm", epsilon)
        self.intermediate = weights.linear(f"{name}.intermediate.dense", is_transposed=True)
        self.output = weights.linear(f"{name}.output.dense", is_transposed=True)
        self.output_norm = weights.layer_norm(f"{name}.output.LayerNorm", epsilon)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.attention_norm(self.project(y.transpose(1, 2).flatten(2)) + x)
        return self.output_norm(self.output(F.gelu(self.intermediate(x))) + x)


class Bert(nn.Module):
    def __init__(self, weights: Weights, arguments: dict[str, Any]) -> None:
        super().__init__()
        # as the file has it: 1e-12 would round to zero in float16
        epsilon = 1e-12 if arguments["dtype"] == "float32" else 1e-5
        self.words, self.positions, self.kinds = (
            weights.embedding(f"embeddings.{kind}_embeddings") for kind in ("word", "position", "token_type")
        )
        self.norm = weights.layer_norm("embeddings.LayerNorm", epsilon)
        self.layers = nn.ModuleList(
            Layer(weights, f"encoder.layer.{index}", arguments["heads"], epsilon)
            for index in range(arguments["layers"])
        )
        self.pooler = weights.linear("pooler.dense")

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places) + self.kinds(token_type_ids))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -10000.0
        mask = mask.expand(-1, -1, input_ids.shape[1], -1)
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def twin(weights: Weights, arguments: dict[str, Any]) -> nn.Module:
    return Bert(weights, arguments)
