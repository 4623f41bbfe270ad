"""Reading Relax expressions: the questions every rewrite asks, answered with plain Python values or None."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 and the float8 types with numpy)
import numpy as np
import tvm
from tvm import relax

from subtune.core.numerics import FLOAT8
from subtune.runtime import aligned_array, is_direct

Expr = Any
"""A Relax expression; TVM's generated annotations do not type-check."""


def is_const(expr: Expr) -> bool:
    return isinstance(expr, tvm.ir.GenericConst)


def op_name(expr: Expr) -> str:
    """`relax.add` for a call of that operator, "" for every other expression."""
    if isinstance(expr, tvm.ir.Call) and isinstance(expr.op, tvm.ir.Op):
        return str(expr.op.name)
    return ""


def type_shape(ty: Any) -> tuple[int, ...] | None:
    """The shape of a tensor type, or None when a dimension is not known."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None or not hasattr(ty.shape, "values"):
        return None
    dims = []
    for dim in ty.shape.values[:]:  # a slice is a list, which is made at once
        if not isinstance(dim, tvm.tirx.IntImm):
            return None
        dims.append(int(dim.value))
    return tuple(dims)


def shape_of(expr: Expr) -> tuple[int, ...] | None:
    """Static shape of a tensor expression, or None when it is not a tensor or a dimension is not known."""
    return type_shape(expr.ty)


def dtype_of(expr: Expr) -> str:
    """`float32` and so on; "" when the expression is no tensor or its element type is not known."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or ty.dtype is None:
        return ""
    return str(ty.dtype)


def is_float(dtype: str) -> bool:
    """Whether tensors of the type are computed with: floats of 8 bits are multiplied, and nothing else."""
    return dtype.startswith(("float", "bfloat")) and dtype != FLOAT8


def array_of(expr: Expr) -> np.ndarray | None:
    """The value of a constant, without a copy where numpy knows the type (do not write to it); else None."""
    if not isinstance(expr, tvm.ir.GenericConst):
        return None
    try:
        return np.from_dlpack(expr.value)
    except (TypeError, BufferError, RuntimeError):
        return np.asarray(expr.value.numpy())


def scalar_of(expr: Expr) -> float | None:
    """The value of a constant that holds one element, of any rank; else None."""
    if not isinstance(expr, tvm.ir.GenericConst):
        return None
    array = array_of(expr)
    if array is None or array.size != 1:
        return None
    return float(array.reshape(()))


def make_const(array: np.ndarray) -> Expr:
    """A constant with exactly `array`'s dtype (`relax.const` alone would narrow int64 and float64).

    It may share memory with `array`: do not write to that again.
    """
    own = array
    if not is_direct(array):  # then there is one copy, where relax.const would make two
        own = aligned_array(array.shape, array.dtype, array.nbytes)
        np.copyto(own, array)
    try:
        return relax.const(tvm.runtime.from_dlpack(own), str(array.dtype))
    except (BufferError, TypeError, RuntimeError):  # numpy's DLPack knows none of ml_dtypes' types
        return relax.const(own, str(array.dtype))


def transposed(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """A contiguous transpose. Axes that stay neighbours are moved as one, which is several times faster."""
    groups: list[list[int]] = []
    for axis in axes:
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    in_order = sorted(groups)
    sizes = [int(np.prod([array.shape[axis] for axis in group], dtype=np.int64)) for group in in_order]
    moved = np.transpose(array.reshape(sizes), [in_order.index(group) for group in groups])
    out = aligned_array(moved.shape, array.dtype, array.nbytes)  # a constant without a further copy
    if moved.ndim == 2:
        for start in range(0, moved.shape[1], _COLUMNS):  # whole rows at a time would miss the cache at every element
            out[:, start : start + _COLUMNS] = moved[:, start : start + _COLUMNS]
    else:
        out[...] = moved
    return out.reshape([array.shape[axis] for axis in axes])


_COLUMNS = 64
"""Columns a matrix is transposed by: as many lines of its source stay in the first-level cache."""


def ints(values: Any) -> tuple[int, ...]:
    """An attribute that holds integers as Python integers."""
    return tuple(int(value) for value in values)


def positive_axis(axis: int, rank: int) -> int:
    return int(axis) + rank if int(axis) < 0 else int(axis)


def is_value(expr: Expr) -> bool:
    """Whether the call computes a Relax value, and is not an arithmetic expression on dimensions."""
    return not isinstance(expr, tvm.ir.Call) or not tvm.ir.is_prim_expr(expr)


CONVOLUTIONS = {f"relax.nn.conv{n}d": getattr(relax.op.nn, f"conv{n}d") for n in (1, 2, 3)}


def convolved(call: tvm.ir.Call, data: Expr, weight: Expr, **changes: Any) -> Expr:
    """The convolution `call` of other operands; `changes`: the attributes that are others."""
    attrs = call.attrs
    same = {
        **{name: ints(getattr(attrs, name)) for name in ("strides", "padding", "dilation")},
        **{name: str(getattr(attrs, name)) for name in ("data_layout", "kernel_layout", "out_layout")},
        "groups": int(attrs.groups),
        "out_dtype": attrs.out_dtype,
    }
    return CONVOLUTIONS[op_name(call)](data, weight, **same | changes)


def is_uniform(array: np.ndarray) -> bool:
    """Whether all elements are one number, which there is."""
    return array.size > 0 and bool((array == array.flat[0]).all())


def dims_of(call: Expr) -> list[int]:
    """The shape of what a call gives, static."""
    return [int(dim) for dim in call.ty.shape.values]


def literal(arg: Expr) -> Any:
    """The immediate for a constant of rank 0; anything else as it is."""
    if not is_const(arg) or int(arg.ty.ndim) != 0:
        return arg
    return tvm.tirx.const(arg.value.numpy().item(), str(arg.ty.dtype))
