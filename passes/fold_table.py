"""What each foldable Relax operator computes, in numpy, bit for bit where its definition leaves no freedom.

A function takes the call (for attributes) and the operands (arrays; lists for tuples; Python tuples for shapes) and
returns an array of the call's dtype, or raises NotFolded when numpy and Relax might disagree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm.ir import Call

from subtune.core.numerics import FLOAT8
from subtune.passes.exprs import dtype_of, ints, is_float, positive_axis, shape_of, transposed

Array = Any


class NotFolded(Exception):
    """These operands are left to the compiler."""


def _float_only(*arrays: Array) -> None:
    if any(not is_float(str(a.dtype)) for a in arrays):
        raise NotFolded


def _exact_reduction(array: Array) -> None:
    # Relax accumulates float16 and bfloat16 in their own type, numpy does not.
    if str(array.dtype) not in ("float32", "float64", "int32", "int64"):
        raise NotFolded


def _elementwise(function: Callable[..., Array]) -> Callable[..., Array]:
    def evaluate(call: Call, *arrays: Array) -> Array:
        return np.asarray(function(*arrays)).astype(dtype_of(call), copy=False)

    return evaluate


def _floating(function: Callable[..., Array]) -> Callable[..., Array]:
    """Transcendental functions: computed in float64 and rounded once, floating types only."""

    def evaluate(call: Call, *arrays: Array) -> Array:
        _float_only(*arrays)
        wide = [a.astype(np.float64) for a in arrays]
        return np.asarray(function(*wide)).astype(dtype_of(call))

    return evaluate


def _divide(call: Call, a: Array, b: Array) -> Array:
    if is_float(str(a.dtype)):
        return a / b
    if str(a.dtype) not in ("int32", "int64") or (b == 0).any():
        raise NotFolded
    quotient = np.abs(a) // np.abs(b)  # Relax truncates, numpy floors
    return (np.sign(a) * np.sign(b) * quotient).astype(a.dtype)


def _guarded_division(function: Callable[..., Array]) -> Callable[..., Array]:
    def evaluate(call: Call, a: Array, b: Array) -> Array:
        if (b == 0).any():
            raise NotFolded
        return np.asarray(function(a, b)).astype(dtype_of(call), copy=False)

    return evaluate


def _power(call: Call, a: Array, b: Array) -> Array:
    _float_only(a, b)
    return np.asarray(np.power(a.astype(np.float64), b.astype(np.float64))).astype(a.dtype)


def _astype(call: Call, array: Array) -> Array:
    dtype = dtype_of(call)
    if is_float(str(array.dtype)) and not is_float(dtype) and dtype != "bool":
        limits = np.iinfo(dtype)  # out of range is undefined in the generated code
        wide = array.astype(np.float64)
        if not np.isfinite(wide).all() or (wide < limits.min).any() or (wide > limits.max).any():
            raise NotFolded
    return array.astype(dtype)


def _along_axis(call: Call, array: Array, numbers: Array) -> Array:
    """A number, or those of each position along the call's axis, beside `array`."""
    if not numbers.ndim:
        return numbers
    axis = positive_axis(call.attrs.axis, array.ndim)
    return numbers.reshape([-1 if a == axis else 1 for a in range(array.ndim)])


def _dequantize(call: Call, array: Array, scale: Array, zero: Array) -> Array:
    scale, zero = (_along_axis(call, array, one) for one in (scale, zero))
    if str(array.dtype) == FLOAT8:
        return array.astype(dtype_of(call)) * scale.astype(dtype_of(call))
    return (array.astype(np.int32) - zero.astype(np.int32)).astype(dtype_of(call)) * scale.astype(dtype_of(call))


def _quantize(call: Call, array: Array, scale: Array, zero: Array) -> Array:
    if dtype_of(call) == FLOAT8:
        raise NotFolded
    limits = np.iinfo(dtype_of(call))
    scale, zero = (_along_axis(call, array, one) for one in (scale, zero))
    if str(array.dtype) != "float32" or np.isnan(array).any():
        raise NotFolded
    return np.clip(np.rint(array / scale) + zero.astype(np.float32), limits.min, limits.max).astype(dtype_of(call))


def _squeeze(call: Call, array: Array) -> Array:
    return array.reshape(shape_of(call))


def _expand_dims(call: Call, array: Array) -> Array:
    return array.reshape(shape_of(call))


def _reshape(call: Call, array: Array, _shape: Any = None) -> Array:
    return array.reshape(shape_of(call))


def _permute(call: Call, array: Array) -> Array:
    axes, rank = call.attrs.axes, array.ndim
    permutation = range(rank)[::-1] if axes is None else [positive_axis(axis, rank) for axis in ints(axes)]
    return transposed(array, permutation)


def _broadcast_to(call: Call, array: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(array, shape)


def _concat(call: Call, arrays: list[Array]) -> Array:
    return np.concatenate(arrays, axis=int(call.attrs.axis or 0))


def _stack(call: Call, arrays: list[Array]) -> Array:
    return np.stack(arrays, axis=int(call.attrs.axis or 0))


def _split(call: Call, array: Array) -> list[Array]:
    where = call.attrs.indices_or_sections
    axis = int(call.attrs.axis)
    if hasattr(where, "value"):
        count, extent = int(where.value), array.shape[axis]
        step = -(-extent // count)
        return np.split(array, list(range(step, step * count, step)), axis=axis)
    return np.split(array, list(ints(where)), axis=axis)


def _strided_slice(call: Call, array: Array, axes: Any, begin: Any, end: Any, strides: Any = None) -> Array:
    index = [slice(None)] * array.ndim
    steps = strides if strides is not None else [1] * len(axes)
    for axis, first, last, step in zip(axes, begin, end, steps, strict=True):
        if int(step) <= 0 or int(first) < -array.shape[int(axis)]:
            raise NotFolded
        index[int(axis)] = slice(int(first), int(last), int(step))
    return array[tuple(index)]


def _take(call: Call, array: Array, indices: Array) -> Array:
    axis = call.attrs.axis
    extent = array.size if axis is None else array.shape[int(axis)]
    if (np.asarray(indices) < 0).any() or (np.asarray(indices) >= extent).any():
        raise NotFolded  # what happens out of range depends on the mode
    return np.take(array, indices, axis=None if axis is None else int(axis))


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    def evaluate(call: Call, array: Array) -> Array:
        _exact_reduction(array)
        axis = None if call.attrs.axis is None else ints(call.attrs.axis)
        wide = array.astype(np.float64) if is_float(str(array.dtype)) else array
        result = np.asarray(function(wide, axis=axis, keepdims=bool(call.attrs.keepdims)))
        return result.astype(dtype_of(call))

    return evaluate


def _mean(array: Array, axis: Any, keepdims: bool) -> Array:
    _float_only(array)
    return np.mean(array, axis=axis, keepdims=keepdims)


def _matmul(call: Call, a: Array, b: Array) -> Array:
    if a.dtype != b.dtype or str(a.dtype) not in ("float32", "float64"):
        raise NotFolded
    return np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(dtype_of(call))


def _full(call: Call, shape: tuple[int, ...], value: Array) -> Array:
    return np.full(shape, value).astype(dtype_of(call))


def _filled(value: int) -> Callable[..., Array]:
    return lambda call, shape: np.full(shape, value, dtype=dtype_of(call))


def _like(value: int | None) -> Callable[..., Array]:
    def evaluate(call: Call, array: Array, fill: Array | None = None) -> Array:
        return np.full(array.shape, fill if value is None else value).astype(dtype_of(call))

    return evaluate


def _arange(call: Call, start: Any, end: Any, step: Any) -> Array:
    if isinstance(start, float) or isinstance(step, float):
        raise NotFolded
    return np.arange(start, end, step, dtype=dtype_of(call))


def _clip(call: Call, array: Array, low: Any, high: Any) -> Array:
    return np.clip(array, low, high).astype(array.dtype)


def _shape_to_tensor(call: Call, shape: tuple[int, ...]) -> Array:
    return np.array(shape, np.int64)


def _tile(call: Call, array: Array) -> Array:
    return np.tile(array, ints(call.attrs.repeats))


def _where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition.astype(bool), a, b)


def _round(a: Array) -> Array:
    return np.rint(a)  # Relax rounds half to even too


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(a: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-a))


def _gelu(a: Array) -> Array:
    return 0.5 * a * (1.0 + _erf(a / math.sqrt(2.0)))


TABLE: dict[str, Callable[..., Any]] = {
    "relax.reshape": _reshape,
    "relax.permute_dims": _permute,
    "relax.expand_dims": _expand_dims,
    "relax.squeeze": _squeeze,
    "relax.flatten": _reshape,
    "relax.broadcast_to": _broadcast_to,
    "relax.astype": _astype,
    "relax.quantize": _quantize,
    "relax.dequantize": _dequantize,
    "relax.concat": _concat,
    "relax.stack": _stack,
    "relax.split": _split,
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
    "relax.tile": _tile,
    "relax.full": _full,
    "relax.zeros": _filled(0),
    "relax.ones": _filled(1),
    "relax.full_like": _like(None),
    "relax.zeros_like": _like(0),
    "relax.ones_like": _like(1),
    "relax.arange": _arange,
    "relax.shape_to_tensor": _shape_to_tensor,
    "relax.matmul": _matmul,
    "relax.sum": _reduce(np.sum),
    "relax.mean": _reduce(_mean),
    "relax.max": _reduce(np.max),
    "relax.min": _reduce(np.min),
    "relax.prod": _reduce(np.prod),
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.divide": _divide,
    "relax.floor_divide": _guarded_division(np.floor_divide),
    "relax.floor_mod": _guarded_division(np.mod),
    "relax.mod": _guarded_division(np.fmod),
    "relax.power": _power,
    "relax.maximum": _elementwise(np.maximum),
    "relax.minimum": _elementwise(np.minimum),
    "relax.equal": _elementwise(np.equal),
    "relax.not_equal": _elementwise(np.not_equal),
    "relax.less": _elementwise(np.less),
    "relax.less_equal": _elementwise(np.less_equal),
    "relax.greater": _elementwise(np.greater),
    "relax.greater_equal": _elementwise(np.greater_equal),
    "relax.logical_and": _elementwise(np.logical_and),
    "relax.logical_or": _elementwise(np.logical_or),
    "relax.logical_xor": _elementwise(np.logical_xor),
    "relax.logical_not": _elementwise(np.logical_not),
    "relax.bitwise_xor": _elementwise(np.bitwise_xor),
    "relax.where": _elementwise(_where),
    "relax.isnan": _elementwise(np.isnan),
    "relax.clip": _clip,
    "relax.abs": _elementwise(np.abs),
    "relax.negative": _elementwise(np.negative),
    "relax.square": _elementwise(np.square),
    "relax.floor": _floating(np.floor),
    "relax.ceil": _floating(np.ceil),
    "relax.round": _floating(_round),
    "relax.sqrt": _floating(np.sqrt),
    "relax.rsqrt": _floating(lambda a: 1.0 / np.sqrt(a)),
    "relax.exp": _floating(np.exp),
    "relax.log": _floating(np.log),
    "relax.sin": _floating(np.sin),
    "relax.cos": _floating(np.cos),
    "relax.tanh": _floating(np.tanh),
    "relax.erf": _floating(_erf),
    "relax.sigmoid": _floating(_sigmoid),
    "relax.nn.gelu": _floating(_gelu),
    "relax.nn.silu": _floating(lambda a: a * _sigmoid(a)),
    "relax.nn.relu": _elementwise(lambda a: np.maximum(a, np.zeros((), a.dtype))),
}
