"""How large the sums of a convolution of bytes become, as its weights are constants.

An algorithm that is exact for sums below a bound (`algorithms.winograd`) is so for any weights up to some number of
channels. Those of a real layer are small on average, and leave room for many times as many.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from subtune.core.graph import OpNode
from subtune.passes.exprs import array_of

SUM_BITS = 25
_DIFFERENCE = 128
"""The largest difference of a byte from the middle one."""


def sums_are_small(nodes: Iterable[OpNode], constants: Mapping[Any, Any]) -> bool:
    """Whether the sums of all deep convolutions among `nodes`, if there are any, stay below 2^`SUM_BITS`. Those of few
    weights stay so whatever these are."""
    deep = [node for node in nodes if _is_deep(node)]
    return bool(deep) and all(_is_small(constants.get(node.inputs[1].source)) for node in deep)


def _is_deep(node: OpNode) -> bool:
    if node.op != "nn.conv2d" or node.output.dtype != "int32" or len(node.inputs) < 2:
        return False
    weight = node.inputs[1].tensor
    return weight.dtype == "int8" and _DIFFERENCE**2 * (weight.numel // int(weight.shape[0])) >= 1 << SUM_BITS


def _is_small(const: Any) -> bool:
    weight = None if const is None else array_of(const)
    if weight is None:
        return False
    of_column = np.abs(weight.reshape(len(weight), -1).astype(np.int32)).sum(1)
    return bool(_DIFFERENCE * int(of_column.max()) < 1 << SUM_BITS)
