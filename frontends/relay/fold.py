"""Shape arithmetic of Relay: calls whose arguments are all small constants, evaluated as the ONNX operators they are.

What decides shapes (`dyn.reshape`), branches and loop bounds is computed in the graph by some importers. Operators
whose attributes have many meanings (reshape, strided_slice, take) are missing: their converters do them, with `small`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from onnx import helper
from tvm.ir import GenericConst

from subtune.frontends.onnx.ops.node import Expr, known_array, numpy_dtype, shape
from subtune.frontends.shape_arithmetic import MAX_ELEMENTS, evaluate

_OPSET = 21
"""Of ONNX, whose operators these are."""


class _Unknown(Exception):
    """The evaluator leaves this one to the converter."""


def small(x: Expr) -> np.ndarray | None:
    """The value of a small constant, else None."""
    if not isinstance(x, GenericConst) or prod(shape(x)) > MAX_ELEMENTS:
        return None
    return known_array(x, {})


def fold(op: str, args: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray | None:
    """The value of a call on small constants; None where it is not folded."""
    flat = args[0] if len(args) == 1 and isinstance(args[0], tuple) else args
    arrays = [None if isinstance(value, tuple) else small(value) for value in flat]
    if not arrays or any(array is None for array in arrays):
        return None
    try:
        if op in _SAME:
            return _onnx(_SAME[op], *arrays)
        return _OTHERS[op](attrs, *arrays) if op in _OTHERS else None
    except _Unknown:
        return None


def _onnx(op: str, *arrays: Any, **attrs: Any) -> np.ndarray:
    found = evaluate(op, arrays, attrs, _OPSET)
    if found is None:
        raise _Unknown
    return found[0]


def _cast(array: np.ndarray, to: str) -> np.ndarray:
    return _onnx("Cast", array, to=helper.np_dtype_to_tensor_dtype(numpy_dtype(to)))


def _floor_divide(_: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.dtype.kind == "f":
        return _onnx("Floor", _onnx("Div", a, b))
    return _onnx("Div", _onnx("Sub", a, _onnx("Mod", a, b)), b)


def _trunc(_: Mapping[str, Any], a: np.ndarray) -> np.ndarray:
    down, up = _onnx("Floor", a), _onnx("Ceil", a)
    return _onnx("Where", _onnx("Less", a, np.zeros_like(a)), up, down)


def _trunc_divide(attrs: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = _onnx("Div", a, b)
    return _trunc(attrs, quotient) if a.dtype.kind == "f" else quotient


def _squeeze(attrs: Mapping[str, Any], a: np.ndarray) -> np.ndarray:
    axis = attrs.get("axis")
    return _onnx("Squeeze", a, None if axis is None else np.asarray(axis, np.int64).reshape(-1))


def _stack(attrs: Mapping[str, Any], *arrays: np.ndarray) -> np.ndarray:
    axis = np.asarray([attrs.get("axis", 0)], np.int64)
    return _onnx("Concat", *(_onnx("Unsqueeze", a, axis) for a in arrays), axis=int(axis[0]))


def _indices(at: np.ndarray) -> np.ndarray:
    return _cast(at, "int64")


def _gather_nd(attrs: Mapping[str, Any], a: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Relay's indices have the coordinates on their first axis, ONNX's on their last."""
    return _onnx("GatherND", a, np.moveaxis(_indices(at), 0, -1), batch_dims=attrs.get("batch_dims", 0))


def _scatter(attrs: Mapping[str, Any], a: np.ndarray, at: np.ndarray, updates: np.ndarray) -> np.ndarray:
    if attrs.get("reduction") not in (None, "", "update"):
        raise _Unknown
    return _onnx("ScatterElements", a, _indices(at), updates, axis=attrs.get("axis", 0))


_SAME = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "floor_mod": "Mod",
    "power": "Pow",
    "negative": "Neg",
    "abs": "Abs",
    "ceil": "Ceil",
    "floor": "Floor",
    "round": "Round",
    "sqrt": "Sqrt",
    "maximum": "Max",
    "minimum": "Min",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_not": "Not",
    "logical_xor": "Xor",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "where": "Where",
    "copy": "Identity",
}

_OTHERS: Mapping[str, Callable[..., np.ndarray]] = {
    "mod": lambda _, a, b: _onnx("Mod", a, b, fmod=1),
    "trunc_mod": lambda _, a, b: _onnx("Mod", a, b, fmod=1),
    "not_equal": lambda _, a, b: _onnx("Not", _onnx("Equal", a, b)),
    "floor_divide": _floor_divide,
    "trunc_divide": _trunc_divide,
    "trunc": _trunc,
    "clip": lambda attrs, a: _cast(np.clip(a, attrs["a_min"], attrs["a_max"]), str(a.dtype)),
    "cast": lambda attrs, a: _cast(a, attrs["dtype"]),
    "cast_like": lambda _, a, b: _cast(a, str(b.dtype)),
    "squeeze": _squeeze,
    "concatenate": lambda attrs, *a: _onnx("Concat", *a, axis=attrs.get("axis", 0)),
    "stack": _stack,
    "gather": lambda attrs, a, at: _onnx("GatherElements", a, _indices(at), axis=attrs.get("axis", 0)),
    "gather_nd": _gather_nd,
    "scatter": _scatter,
    "scatter_elements": _scatter,
}
