"""The strides that PyTorch expects of a graph's results: it makes views of some by them."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

ROWS: tuple[int, ...] = ()
"""As the compiled model makes it, or no tensor at all."""


def varies(value: Any) -> bool:
    """Whether a traced value is a number that varies, or a tensor of such a size."""
    if isinstance(value, torch.Tensor):
        return any(isinstance(dim, torch.SymInt) for dim in value.shape)
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def result_strides(module: fx.GraphModule) -> list[tuple[int, ...] | None]:
    """Of each result: its strides, or ROWS; None for those that overlap, or vary and are no rows."""
    return [_strides(one) for one in module.graph.output_node().args[0]]  # type: ignore[union-attr]


def laid_out(tensor: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    """The tensor itself, or a copy of it in these strides."""
    if not strides or (tensor.is_contiguous() and _is_rows(tensor.shape, strides)):
        return tensor
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _strides(node: Any) -> tuple[int, ...] | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return ROWS
    if varies(value) or any(isinstance(stride, torch.SymInt) for stride in value.stride()):
        return None
    strides = value.stride()
    overlaps = any(size > 1 and stride == 0 for size, stride in zip(value.shape, strides, strict=True))
    return None if overlaps else strides


def _is_rows(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
