"""Operators on 16-bit floats that are imported as their float32 selves, between casts: computed wide, rounded once.

They are those whose import in a half would be other operators than in float32, or loops bound to the half. The casts
cost nothing: a model in a half is compiled as the float32 model (`subtune.passes.widen`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import relax

from subtune.frontends.onnx.ops.node import Expr, Node, array_const, dtype, known_array

HALVES = ("float16", "bfloat16")

_WIDENED = frozenset(
    "Relu LeakyRelu PRelu Elu Selu Celu HardSigmoid HardSwish Mish Softplus Softsign ThresholdedRelu Shrink Swish Gelu "
    "Softmax LogSoftmax Hardmax Max Min Sign Clip Mod Sinh Cosh Asinh Acosh Atanh Sigmoid "
    "Trilu Pad Resize Upsample Slice OneHot GridSample "
    "MaxPool AveragePool LpPool GlobalLpPool GlobalMaxPool GlobalAveragePool LRN "
    "InstanceNormalization GroupNormalization LayerNormalization RMSNormalization BatchNormalization "
    "SimplifiedLayerNormalization".split()
)


def widened(node: Node) -> tuple[Node, str]:
    """The node on float32, and the half its outputs are to be rounded to; the node as it is, and "", for most."""
    if node.op not in _WIDENED or sum(node.wanted) > 1:  # a second output may have a type of its own
        return node, ""
    if any(isinstance(value, tuple) for value in node.inputs):
        return node, ""
    halves = [dtype(value) for value in node.inputs if value is not None and dtype(value) in HALVES]
    if not halves or (node.inputs[0] is not None and dtype(node.inputs[0]) in ("float32", "float64")):
        return node, ""
    arrays = (
        dict(node.arrays) if any(value in node.arrays for value in node.inputs if value is not None) else node.arrays
    )
    return replace(node, inputs=tuple(_wide(node, value, arrays) for value in node.inputs), arrays=arrays), halves[0]


def _wide(node: Node, value: Expr | None, arrays: Any) -> Expr | None:
    if value is None or dtype(value) not in HALVES:
        return value
    known = known_array(value, node.arrays)
    if known is not None and not isinstance(value, relax.Var):
        return array_const(known.astype("float32"))
    wide = node.cast(value, "float32")
    if known is not None:
        arrays[wide] = known.astype("float32")
    return wide


def narrowed(node: Node, value: Any, half: str) -> Any:
    """An output of a widened node in the half it belongs to."""
    if not half or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(narrowed(node, part, half) for part in value)
    bound = value if isinstance(value, relax.Var) or known_array(value, node.arrays) is not None else node.emit(value)
    return node.cast(bound, half) if dtype(bound) == "float32" else bound
