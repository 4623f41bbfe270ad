"""Shape arithmetic on known integers, done in numpy while importing.

Exporters compute shapes with small graphs (Shape, Gather, Concat, Mul …); as all tensor shapes are static
these are constants. Only small results are folded here; large constants are the business of a later pass. A
tensor without elements is known whatever computes it, which takes most empty tensors out of the compiler's
way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from subtune.frontends.onnx.ops.node import Node, dtype_name, known_array, numpy_dtype, shape

_MAX_ELEMENTS = 1024


def fold(node: Node) -> tuple[np.ndarray, ...] | None:
    """The node's outputs if they are known now, else None."""
    if node.domain:
        return None
    if node.op == "Shape" and not isinstance(node.x, tuple):
        dims = np.asarray(shape(node.x), dtype=np.int64)
        return (dims[_slice_bound(node, "start", 0) : _slice_bound(node, "end", None)],)
    if node.op == "Size" and not isinstance(node.x, tuple):
        return (np.asarray(np.prod(shape(node.x), dtype=np.int64)),)
    function = _FOLDS.get(node.op)
    if function is None or len(node.wanted) != 1 or any(isinstance(v, tuple) for v in node.inputs):
        return None
    arrays = [None if v is None else known_array(v, node.arrays) for v in node.inputs]
    known = [a for a in arrays if a is not None]
    if len(known) < sum(v is not None for v in node.inputs):
        return None
    if not known or any(a.size > _MAX_ELEMENTS for a in known):
        return None
    with np.errstate(all="ignore"):
        result = function(node, arrays)
    if result is None or result.size > _MAX_ELEMENTS:
        return None
    return (result,)


def is_folded(domain: str, op: str) -> bool:
    """Whether `fold` handles the operator in some form."""
    return not domain and (op in ("Shape", "Size") or op in _FOLDS)


def _slice_bound(node: Node, name: str, default: int | None) -> int | None:
    value = node.attr(name)
    return default if value is None else int(value)


_Fold: TypeAlias = Callable[[Node, list], np.ndarray | None]


def _same_dtype(function: Callable[..., np.ndarray]) -> _Fold:
    """Elementwise on inputs of one dtype, which the result keeps."""

    def folded(node: Node, a: list) -> np.ndarray | None:
        if node.opset < 7 and len(a) > 1:  # explicit broadcasting by attribute
            return None
        return np.asarray(function(*a)).astype(a[0].dtype)

    return folded


def _compare(function: Callable[..., np.ndarray]) -> _Fold:
    return lambda node, a: None if node.opset < 7 else np.asarray(function(*a))


def _div(node: Node, a: list) -> np.ndarray | None:
    if node.opset < 7:
        return None
    x, y = a
    if x.dtype.kind == "f":
        return np.asarray(x / y).astype(x.dtype)
    if x.dtype.kind not in "iu" or (y == 0).any():
        return None
    quotient = np.abs(x.astype(object)) // np.abs(y.astype(object))
    return np.asarray(quotient * np.sign(x.astype(object)) * np.sign(y.astype(object))).astype(x.dtype)


def _mod(node: Node, a: list) -> np.ndarray | None:
    x, y = a
    if x.dtype.kind in "iu" and (y == 0).any():
        return None
    return np.asarray(np.fmod(x, y) if node.attr("fmod", 0) else np.mod(x, y)).astype(x.dtype)


def _cast(node: Node, a: list) -> np.ndarray | None:
    to = dtype_name(node.attr("to"))
    narrowing = a[0].dtype.kind == "f" and to not in ("float16", "float32", "float64", "bool")
    if narrowing and not (np.abs(a[0]) <= 2**31).all():
        return None
    return a[0].astype(numpy_dtype(to))


def _cast_like(node: Node, a: list) -> np.ndarray | None:
    return a[0].astype(a[1].dtype)


def _axes(node: Node, a: list) -> tuple[int, ...] | None:
    if len(a) > 1 and a[1] is not None:
        return tuple(int(v) for v in a[1].reshape(-1))
    axes = node.attr("axes")
    return None if axes is None else tuple(axes)


def _squeeze(node: Node, a: list) -> np.ndarray | None:
    axes = _axes(node, a)
    return np.squeeze(a[0]) if axes is None else np.squeeze(a[0], axis=axes)


def _unsqueeze(node: Node, a: list) -> np.ndarray | None:
    return np.expand_dims(a[0], _axes(node, a) or ())


def _reshape(node: Node, a: list) -> np.ndarray | None:
    if node.opset < 5:
        return None
    target = [int(v) for v in a[1].reshape(-1)]
    if not node.attr("allowzero", 0):
        target = [a[0].shape[i] if d == 0 else d for i, d in enumerate(target)]
    return a[0].reshape(target)


def _slice(node: Node, a: list) -> np.ndarray | None:
    if node.opset < 10:
        starts, ends = node.attr("starts"), node.attr("ends")
        axes = node.attr("axes") or range(len(starts))
        steps: Sequence[int] = [1] * len(starts)
    else:
        a = [*a, None, None, None]
        starts, ends = a[1].tolist(), a[2].tolist()
        axes = range(len(starts)) if a[3] is None else a[3].tolist()
        steps = [1] * len(starts) if a[4] is None else a[4].tolist()
    index = [slice(None)] * a[0].ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step <= 0:
            return None
        index[axis] = slice(start, end, step)
    return a[0][tuple(index)]


def _range(node: Node, a: list) -> np.ndarray | None:
    start, limit, delta = (v.reshape(()).item() for v in a)
    count = max(0, int(np.ceil((limit - start) / delta))) if delta else None
    if count is None or count > _MAX_ELEMENTS:
        return None
    return (start + np.arange(count) * delta).astype(a[0].dtype)


def _constant_of_shape(node: Node, a: list) -> np.ndarray | None:
    from onnx import numpy_helper

    dims = [int(v) for v in a[0]]
    if np.prod(dims, dtype=np.int64) > _MAX_ELEMENTS:
        return None
    value = node.attr("value")
    if value is None:
        return np.zeros(dims, dtype=np.float32)
    dtype_name(value.data_type)
    fill = numpy_helper.to_array(value).reshape(-1)
    return np.full(dims, fill[0], dtype=fill.dtype)


def _expand(node: Node, a: list) -> np.ndarray | None:
    target = np.broadcast_shapes(a[0].shape, tuple(int(v) for v in a[1]))
    return np.broadcast_to(a[0], target) if np.prod(target) <= _MAX_ELEMENTS else None


def _tile(node: Node, a: list) -> np.ndarray | None:
    if node.opset < 6 or np.prod(a[1]) * a[0].size > _MAX_ELEMENTS:
        return None
    return np.tile(a[0], a[1])


def _reduce(function: Callable[..., np.ndarray]) -> _Fold:
    def folded(node: Node, a: list) -> np.ndarray | None:
        axes = _axes(node, a) or None
        if axes is None and node.attr("noop_with_empty_axes", 0):
            return a[0]
        result = function(a[0], axis=axes, keepdims=bool(node.attr("keepdims", 1)))
        return np.asarray(result).astype(a[0].dtype)

    return folded


def _unless_empty(function: Callable[..., np.ndarray]) -> _Fold:
    reduce = _reduce(function)
    return lambda node, a: None if a[0].size == 0 else reduce(node, a)


def _variadic(function: Callable[..., np.ndarray]) -> _Fold:
    def folded(node: Node, a: list) -> np.ndarray | None:
        result = a[0]
        for other in a[1:]:
            result = function(result, other)
        return np.asarray(result)

    return folded


_FOLDS: dict[str, _Fold] = {
    "Add": _same_dtype(np.add),
    "Sub": _same_dtype(np.subtract),
    "Mul": _same_dtype(np.multiply),
    "Div": _div,
    "Mod": _mod,
    "Neg": _same_dtype(np.negative),
    "Abs": _same_dtype(np.abs),
    "Floor": _same_dtype(np.floor),
    "Ceil": _same_dtype(np.ceil),
    "Sqrt": _same_dtype(np.sqrt),
    "Reciprocal": _same_dtype(np.reciprocal),
    "Pow": _same_dtype(np.power),
    "Min": _variadic(np.minimum),
    "Max": _variadic(np.maximum),
    "Equal": _compare(np.equal),
    "Less": _compare(np.less),
    "LessOrEqual": _compare(np.less_equal),
    "Greater": _compare(np.greater),
    "GreaterOrEqual": _compare(np.greater_equal),
    "Not": lambda node, a: np.logical_not(a[0]),
    "And": _compare(np.logical_and),
    "Or": _compare(np.logical_or),
    "Where": lambda node, a: np.where(*a).astype(a[1].dtype),
    "Cast": _cast,
    "CastLike": _cast_like,
    "Identity": lambda node, a: a[0],
    "Gather": lambda node, a: np.asarray(np.take(a[0], a[1], axis=node.attr("axis", 0))),
    "Concat": lambda node, a: np.concatenate(a, axis=node.attr("axis", 1)),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Transpose": lambda node, a: np.transpose(a[0], node.attr("perm")),
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Expand": _expand,
    "Tile": _tile,
    "ReduceSum": _reduce(np.sum),
    "ReduceProd": _reduce(np.prod),
    "ReduceMax": _unless_empty(np.max),
    "ReduceMin": _unless_empty(np.min),
    "NonZero": lambda node, a: np.asarray(np.nonzero(a[0]), dtype=np.int64),
}
