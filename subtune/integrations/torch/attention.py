"""Attentions that PyTorch's AOT compiler has turned into one of its kernels -> the operator that a module calls.

torch.onnx knows that operator in all of its forms. Of the kernels it writes some wrongly: fewer heads of keys than of
queries (2.14).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional

_ATEN = torch.ops.aten
_KERNELS = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
)


def restore_attention(graph: fx.Graph) -> None:
    """Replace, in place, each kernel without dropout of which only the result is used."""
    for kernel in _KERNELS:
        for node in graph.find_nodes(op="call_function", target=kernel):
            results = list(node.users)
            is_plain = all(one.target is operator.getitem and one.args[1] == 0 for one in results)
            given = _arguments(node)
            if not is_plain or given.get("dropout_p"):
                continue
            query, key, value = (given[name] for name in ("query", "key", "value"))
            keywords = {
                "attn_mask": given.get("attn_mask", given.get("attn_bias")),
                "is_causal": given.get("is_causal", False),
                "scale": given.get("scale"),
                "enable_gqa": query.meta["val"].shape[1] != key.meta["val"].shape[1],
            }
            with graph.inserting_before(node):
                whole = graph.call_function(functional.scaled_dot_product_attention, (query, key, value), keywords)
            for one in results:
                one.replace_all_uses_with(whole)
                graph.erase_node(one)
            graph.erase_node(node)


def _arguments(node: fx.Node) -> dict[str, Any]:
    names = [one.name for one in node.target._schema.arguments]  # type: ignore[union-attr]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}
