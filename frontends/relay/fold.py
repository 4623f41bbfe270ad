"""Shape arithmetic: calls whose arguments are all small constants are computed while importing.

What decides shapes (`dyn.reshape`), branches and loop bounds is computed in the graph by some importers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm.ir import GenericConst

from subtune.frontends.onnx.ops.node import dtype, known_array, numpy_dtype, shape

_MAX_ELEMENTS = 64

_Fold = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


def fold(op: str, args: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray | None:
    """The value of a call on small constants; None where it is not folded."""
    made = _FOLDS.get(op)
    if made is None or not args:
        return None
    arrays = tuple(map(_known, args))
    if any(array is None for array in arrays):
        return None
    try:
        with np.errstate(all="ignore"):
            found = np.asarray(made(arrays, attrs))
    except (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, AttributeError):
        return None  # the converter says what is wrong
    return found if found.size <= _MAX_ELEMENTS and found.dtype.kind in "biuf" else None


def _known(value: Any) -> Any:
    if isinstance(value, tuple):
        fields = tuple(map(_known, value))
        return None if any(field is None for field in fields) else fields
    if not isinstance(value, GenericConst) or dtype(value) == "bfloat16":
        return None
    return known_array(value, {}) if math.prod(shape(value)) <= _MAX_ELEMENTS else None


def _binary(made: Callable[[Any, Any], Any]) -> _Fold:
    return lambda args, _: made(args[0], args[1])


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C++ rounds integers towards zero."""
    if a.dtype.kind == "f":
        return a / b
    if not b.all():
        raise ZeroDivisionError
    rounded = np.floor_divide(np.abs(a), np.abs(b)) if a.dtype.kind == "i" else a // b
    return (rounded * np.sign(a) * np.sign(b)).astype(a.dtype)


def _unless_zero(made: Callable[[Any, Any], Any]) -> _Fold:
    def folded(args: tuple[Any, ...], _: Mapping[str, Any]) -> Any:
        if args[1].dtype.kind != "f" and not args[1].all():
            raise ZeroDivisionError
        return made(args[0], args[1])

    return folded


def _cast(args: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray:
    to = numpy_dtype(attrs["dtype"])
    if args[0].dtype.kind == "f" and to.kind in "iu" and not (np.abs(args[0]) < 2**31).all():
        raise OverflowError
    return args[0].astype(to)


def _clip(args: tuple[Any, ...], attrs: Mapping[str, Any]) -> np.ndarray:
    return np.clip(args[0], attrs["a_min"], attrs["a_max"]).astype(args[0].dtype)


def _unary(made: Callable[[Any], Any]) -> _Fold:
    return lambda args, _: np.asarray(made(args[0])).astype(args[0].dtype)


def _axis(attrs: Mapping[str, Any], default: Any = 0) -> Any:
    axis = attrs.get("axis", default)
    return tuple(axis) if isinstance(axis, list) else axis


_FOLDS: Mapping[str, _Fold] = {
    "add": _binary(lambda a, b: a + b),
    "subtract": _binary(lambda a, b: a - b),
    "multiply": _binary(lambda a, b: a * b),
    "divide": _binary(_divide),
    "trunc_divide": _binary(lambda a, b: np.trunc(_divide(a, b))),
    "floor_divide": _unless_zero(np.floor_divide),
    "floor_mod": _unless_zero(np.mod),
    "mod": _unless_zero(np.fmod),
    "trunc_mod": _unless_zero(np.fmod),
    "power": _binary(np.power),
    "negative": _unary(np.negative),
    "abs": _unary(np.abs),
    "ceil": _unary(np.ceil),
    "floor": _unary(np.floor),
    "round": _unary(np.round),
    "trunc": _unary(np.trunc),
    "sqrt": lambda args, _: np.sqrt(args[0]) if args[0].dtype.kind == "f" else None,
    "clip": _clip,
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "equal": _binary(np.equal),
    "not_equal": _binary(np.not_equal),
    "less": _binary(np.less),
    "less_equal": _binary(np.less_equal),
    "greater": _binary(np.greater),
    "greater_equal": _binary(np.greater_equal),
    "logical_and": _binary(np.logical_and),
    "logical_or": _binary(np.logical_or),
    "logical_not": lambda args, _: np.logical_not(args[0]),
    "logical_xor": _binary(np.logical_xor),
    "bitwise_and": _binary(np.bitwise_and),
    "bitwise_or": _binary(np.bitwise_or),
    "cast": _cast,
    "cast_like": lambda args, _: _cast(args[:1], {"dtype": str(args[1].dtype)}),
    "where": lambda args, _: np.where(args[0].astype(bool), args[1], args[2]),
    "squeeze": lambda args, attrs: np.squeeze(args[0], _axis(attrs, None)),
    "concatenate": lambda args, attrs: np.concatenate(args[0], _axis(attrs)),
    "stack": lambda args, attrs: np.stack(args[0], _axis(attrs)),
    "copy": lambda args, _: args[0],
}
"""Without those whose attributes have many meanings (reshape, strided_slice, take): their converters do them."""
