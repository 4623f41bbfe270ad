"""Random values for a model's weights, such that what comes out of a deep network is finite and not all zero.

Source: Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks" (2010): a
variance of one over the number of products that are summed keeps the variance of what passes through a layer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from subtune.frontends.onnx.ops.node import numpy_dtype
from subtune.frontends.relay.nodes import Tensor
from subtune.frontends.relay.roles import Use

_SMALL = 0.2
_PRODUCTS = frozenset(("qnn.conv2d", "qnn.conv2d_transpose", "qnn.dense"))
_QUANTISED = {"int8": (-64, 64), "uint8": (64, 192), "int32": (-64, 64)}


def random_weight(name: str, kind: Tensor, use: Use, seed: int = 0) -> np.ndarray:
    """The same for the same name, type, use and seed, whatever else the model has. `kind` is static."""
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    shape = tuple(dim or 0 for dim in kind.shape)
    op, operand, _ = use.weight or ("", 0, {})
    if kind.dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if not kind.dtype.startswith(("float", "bfloat")):
        if (op.startswith("qnn.") and operand != 1) or not shape:  # a zero point
            return np.zeros(shape, kind.dtype)
        first, end = _QUANTISED.get(kind.dtype, (0, 2)) if op else (0, 2)
        return rng.integers(first, end, shape).astype(kind.dtype)
    low, high = _interval(shape, use)
    made = np.asarray(rng.random(shape, np.float32))  # uniform: a third of a normal's time
    made *= np.float32(high - low)
    made += np.float32(low)
    return made.astype(numpy_dtype(kind.dtype), copy=False)


def _interval(shape: tuple[int, ...], use: Use) -> tuple[float, float]:
    """The least and the largest value of a weight of floats."""
    op, operand, attrs = use.weight or ("", 0, {})
    if op.startswith("qnn.") and not (op in _PRODUCTS and operand == 1):  # a scale
        return 0.02, 0.05
    if op == "nn.prelu":
        return 0.1, 0.3
    is_scale = (op == "nn.batch_norm" and operand in (1, 4)) or (op.endswith("_norm") and operand == 1)
    if use.is_positive or is_scale or (use.is_factor and not op):
        return 0.5, 1.5
    if op in ("take", "embedding"):
        return -1.0, 1.0
    if op and op != "nn.bias_add" and not op.endswith("_norm") and len(shape) > 1:
        width = math.sqrt(3 / _fan_in(shape, op, attrs))  # whose variance is a third of its square
        return -width, width
    return -_SMALL, _SMALL


def _fan_in(shape: tuple[int, ...], op: str, attrs: Mapping[str, Any]) -> float:
    """How many products one output sums; of a matrix the mean of both ends, as it may be transposed on its way."""
    size = math.prod(shape)
    layout = attrs.get("kernel_layout")
    if "conv" in op and isinstance(layout, str) and len(layout) == len(shape) and "O" in layout:
        return max(size / max(shape[layout.index("O")], 1), 1)
    if "conv" in op:
        return max(size / max(shape[1] if "transpose" in op else shape[0], 1), 1)
    return max(sum(shape[-2:]) / 2, 1)
