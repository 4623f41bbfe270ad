"""Attentions that PyTorch's AOT compiler has turned into one of its kernels -> the operator that a module calls.

torch.onnx knows that operator in all of its forms. Of the kernels it writes some wrongly: fewer heads of keys than of
queries (2.14).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.nn import functional

_ATEN = torch.ops.aten
_KERNELS = (
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
    _ATEN._scaled_dot_product_cudnn_attention.default,
)


_ATTENTION = _ATEN.scaled_dot_product_attention.default
_AXES = 4
"""Of what torch.onnx writes: batches, heads, rows, columns."""


def in_products(program: ExportedProgram) -> ExportedProgram:
    """The program with its attentions as products and a softmax, if some have other axes than torch.onnx writes."""
    found = program.graph.find_nodes(op="call_function", target=_ATTENTION)
    if all(node.args[0].meta["val"].dim() == _AXES for node in found):
        return program
    return program.run_decompositions({_ATTENTION: _attention})


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """As PyTorch's documentation has it, without dropout: a compiled model does not train."""
    if enable_gqa:
        key, value = (one.repeat_interleave(query.size(-3) // one.size(-3), -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (query.size(-1) ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    result = scores.softmax(-1) @ value
    # PyTorch's kernels leave rows outermost, and views that follow were traced so
    return result.transpose(1, 2).contiguous().transpose(1, 2) if result.dim() == _AXES else result


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
