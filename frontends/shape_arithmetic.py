"""Shape arithmetic: what a model computes from shapes is computed while it is imported, by ONNX's own definition.

Exporters compute shapes, axes and conditions in the graph (Shape, Gather, Concat, Mul, Reshape). As all shapes are
static these are constants. The arithmetic is that of `onnx.reference`, which every frontend uses: nothing here says a
second time what an operator means. A tensor without elements is known whatever computes it, which takes most empty
tensors out of the compiler's way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ValueInfoProto, helper
from onnx.reference import ReferenceEvaluator

MAX_ELEMENTS = 4096
"""More than any shape has, fewer than most weights: larger constants are data, and folded once by a pass."""

# Quantisation is left alone on purpose, since weights must reach the tuner as the integers they are.
# fmt: off
OPERATORS = frozenset({
    "Abs", "Add", "And", "BitwiseAnd", "BitwiseOr", "Cast", "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape",
    "Div", "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual",
    "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range",
    "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterElements",
    "ScatterND", "Shape", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu",
    "Unsqueeze", "Where", "Xor",
})
# fmt: on

_READS_NO_VALUES = frozenset({"Shape", "Size"})


def evaluate(
    op: str,
    inputs: Sequence[np.ndarray | None],
    attrs: Mapping[str, Any],
    opset: int,
    num_outputs: int = 1,
) -> tuple[np.ndarray, ...] | None:
    """The outputs of an operator of ONNX's own domain on known arrays.

    None: the operator is no shape arithmetic, too large, or leaves its result undefined (division of integers by zero,
    an index out of range, a cast of what does not fit). The converter then judges it.

    Args:
        inputs: None for an omitted one.
    """
    arrays = {f"i{at}": array for at, array in enumerate(inputs) if array is not None}
    if op not in OPERATORS or not arrays or "broadcast" in attrs:  # aligned by an attribute, before opset 7
        return None
    try:
        if op not in _READS_NO_VALUES and _size(op, list(arrays.values())) > MAX_ELEMENTS:
            return None
        with np.errstate(divide="raise", invalid="raise"):
            results = _evaluator(op, inputs, attrs, opset, num_outputs).run(None, arrays)
    except Exception:  # whatever the evaluator and numpy say of operands that do not fit
        return None
    found = tuple(np.asarray(result) for result in results)
    return found if all(array.size <= MAX_ELEMENTS and array.dtype.kind in "biufV" for array in found) else None


def _evaluator(
    op: str, inputs: Sequence[np.ndarray | None], attrs: Mapping[str, Any], opset: int, num_outputs: int
) -> ReferenceEvaluator:
    names = [f"i{at}" if array is not None else "" for at, array in enumerate(inputs)]
    outputs = [f"o{at}" for at in range(num_outputs)]
    node = helper.make_node(op, names, outputs, **attrs)
    given, made = ([ValueInfoProto(name=name) for name in some if name] for some in (names, outputs))
    graph = helper.make_graph([node], op, given, made)
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))


def known_shape(dims: Sequence[int]) -> np.ndarray:
    """An array of this shape without memory behind it: Shape and Size read no values."""
    return np.broadcast_to(np.float32(0), dims)


def _size(op: str, arrays: Sequence[np.ndarray]) -> int:
    """Elements of the largest array at play; for what makes a large result of few numbers, those of the result."""
    largest = max(array.size for array in arrays)
    if largest > MAX_ELEMENTS:
        return largest
    if op in ("ConstantOfShape", "Expand", "Tile"):
        return math.prod(max(1, int(extent)) for extent in arrays[-1].reshape(-1)) * (largest if op == "Tile" else 1)
    if op == "Range" and all(array.size == 1 for array in arrays):
        start, limit, delta = (float(array.reshape(())) for array in arrays)
        return int(abs(limit - start) / abs(delta)) if delta else MAX_ELEMENTS + 1
    return largest
