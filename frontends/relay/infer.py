"""Types of parameters that a text leaves out, as Relay's type relations fill them in from a call's other operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from subtune.frontends.relay.nodes import Tensor

_CONV = {
    "nn.conv1d": ("NCW", "OIW", 1),
    "nn.conv2d": ("NCHW", "OIHW", 2),
    "nn.conv3d": ("NCDHW", "OIDHW", 3),
    "nn.conv1d_transpose": ("NCW", "IOW", 1),
    "nn.conv2d_transpose": ("NCHW", "IOHW", 2),
    "nn.conv3d_transpose": ("NCDHW", "IODHW", 3),
}

# Operand -> Relay's default of the axis whose extent it has.
_VECTORS = {
    "nn.bias_add": (1, (1,)),
    "nn.batch_norm": (1, (1, 2, 3, 4)),
    "nn.instance_norm": (1, (1, 2)),
    "nn.group_norm": (1, (1, 2)),
    "nn.layer_norm": (-1, (1, 2)),
    "nn.prelu": (1, (1,)),
}

_ALIKE = frozenset(
    "add subtract multiply divide maximum minimum power equal not_equal less less_equal greater greater_equal".split()
)
"""Operators whose operands have one dtype, and one shape where nothing says otherwise."""


def infer(op: str, index: int, data: Tensor | None, attrs: Mapping[str, Any]) -> Tensor | None:
    """The type of operand `index` of a call; None where nothing determines it.

    Args:
        data: the type of the first operand, or of the other one of an elementwise operator.
    """
    if data is None:
        return None
    if op in _CONV:
        shape = _kernel(op, data.shape, attrs) if index == 1 else None
        return None if shape is None else Tensor(shape, data.dtype)
    if op in ("nn.dense", "nn.contrib_dense_pack"):
        units = attrs.get("units")
        return Tensor((units, data.shape[-1]), data.dtype) if index == 1 and _is_size(units) and data.shape else None
    if op in _VECTORS:
        default, operands = _VECTORS[op]
        axis = attrs.get("axis", default)
        if index not in operands or not isinstance(axis, int) or not -len(data.shape) <= axis < len(data.shape):
            return None
        return Tensor((data.shape[axis],), data.dtype)
    return data if op in _ALIKE else None


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _kernel(op: str, data: tuple[int | None, ...], attrs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """A convolution's weight, from its channels, its kernel size and the layouts."""
    data_layout, kernel_layout, rank = _CONV[op]
    data_layout = attrs.get("data_layout") or data_layout
    kernel_layout = attrs.get("kernel_layout") or kernel_layout
    size, channels, groups = attrs.get("kernel_size"), attrs.get("channels"), attrs.get("groups", 1)
    size = [size] * rank if _is_size(size) else size
    if not isinstance(size, list) or len(size) != rank or not all(map(_is_size, (*size, channels, groups))):
        return None
    if sorted(data_layout) != sorted(_CONV[op][0]) or len(data) != len(data_layout):
        return None
    if sorted(kernel_layout) != sorted(_CONV[op][1]):
        return None
    taken = data[data_layout.index("C")]
    if taken is None or taken % groups or channels % groups:
        return None
    is_transposed = op.endswith("_transpose")
    extents = dict(zip(_CONV[op][1][2:], size, strict=True))
    extents["O"] = channels // groups if is_transposed else channels
    extents["I"] = taken if is_transposed else taken // groups
    return tuple(extents[letter] for letter in kernel_layout)
