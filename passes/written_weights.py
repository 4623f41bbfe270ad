"""Weights of bytes that a file makes floats of by arithmetic are weights that it dequantises.

    matmul(x, astype(q))                                    ->  matmul(x, dequantize(q, 1, 0))
    matmul(x, reshape((astype(q) - astype(zero)) * scale))  ->  matmul(x, reshape(dequantize(q, scale, zero)))

That is how PyTorch exports what torchao quantised, with [N, blocks, size] integers and a scale for each block, and how
files write whose opset has no DequantizeLinear of blocks. Floats that are the same to the bit: a difference of bytes is
exact in every type, and its product with a scale is rounded once.

Only what a single product reads is written anew, for `packed_weights`; all else is folded into floats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.forms import ANY, Forms
from subtune.core.numerics import BYTES, HALVES
from subtune.passes.exprs import Expr, array_of, dtype_of, ints, make_const, op_name, shape_of
from subtune.passes.fold_constants import fold
from subtune.passes.integer_operands import VIEWS
from subtune.passes.rewriter import Walk, rewrite

_FLOATS = ("float32", *HALVES)


@dataclass(frozen=True, slots=True)
class _Bits:
    """scale * (values - zero), broadcast as numpy does; `zero` is of the type of `values`."""

    values: np.ndarray
    zero: np.ndarray
    scale: np.ndarray


def written_weights(mod: tvm.IRModule, forms: Forms = ANY) -> tvm.IRModule:
    """`mod` with weights of products as `relax.dequantize` of constants, where they were arithmetic on bytes.

    Nothing changes for a device whose kernels read no packed weights (`forms.packed_rows`).
    """
    if not forms.packed_rows or not _widens_bytes(mod):
        return mod
    moved = dict.fromkeys((*VIEWS, "relax.permute_dims"), (_fold_moved,))
    return rewrite(mod, {**moved, "relax.matmul": (_dequantise_weights,)})


def _widens_bytes(mod: tvm.IRModule) -> bool:
    """Whether bytes become floats: to walk all of a model for what it has not takes longer than this look."""
    return any(
        op_name(binding.value) == "relax.astype"
        and dtype_of(binding.value.args[0]) in BYTES
        and dtype_of(binding.value) in _FLOATS
        for block in mod["main"].body.blocks
        for binding in block.bindings
    )


def _fold_moved(walk: Walk, call: Call) -> Expr | None:
    """The rule on constants that are only moved: weights, and the scales of their blocks."""
    return fold(walk, call) if array_of(call.args[0]) is not None else None


def _dequantise_weights(walk: Walk, call: Call) -> Expr | None:
    weight = _weights(walk, call.args[1])
    return None if weight is None else relax.op.matmul(call.args[0], weight, call.attrs.out_dtype)


def _weights(walk: Walk, expr: Expr) -> Expr | None:
    """The matrix `expr` by `relax.dequantize`, through what turns it; None where it is none of bytes."""
    call, shape = walk.definition(expr), shape_of(expr)
    if shape is None or len(shape) != 2 or dtype_of(expr) not in _FLOATS or not _is_read_once(walk, expr):
        return None
    if op_name(call) == "relax.permute_dims":
        inner, axes = _weights(walk, call.args[0]), call.attrs.axes
        return None if inner is None else relax.op.permute_dims(inner, None if axes is None else ints(axes))
    is_reshaped = op_name(call) == "relax.reshape"
    bits = _read(walk, call.args[0] if is_reshaped else expr)
    if bits is None:
        return None
    made = _of_rows(bits, shape) if is_reshaped else _of_axis(bits)
    return made if made is None or dtype_of(expr) == "float32" else relax.op.astype(made, dtype_of(expr))


def _is_read_once(walk: Walk, expr: Expr) -> bool:
    return isinstance(expr, tvm.ir.Var) and walk.has_one_use(expr)


def _read(walk: Walk, expr: Expr) -> _Bits | None:
    """The bytes that `expr` is made of, by a cast, a difference and a product, each of which may be absent but one."""
    if not _is_read_once(walk, expr):
        return None
    call = walk.definition(expr)
    if op_name(call) == "relax.astype":
        values = array_of(call.args[0])
        if values is None or str(values.dtype) not in BYTES:
            return None
        return _Bits(values, np.zeros((), values.dtype), np.ones((), np.float32))
    if op_name(call) == "relax.multiply":
        return _scaled(walk, call)
    if op_name(call) != "relax.subtract":
        return None
    bits = _read(walk, call.args[0])
    zero = None if bits is None else _whole(walk, call.args[1], str(bits.values.dtype))
    if bits is None or zero is None or bits.scale.shape or bits.scale != 1 or np.any(bits.zero):
        return None
    return replace(bits, zero=zero)


def _scaled(walk: Walk, call: Call) -> _Bits | None:
    for left, right in (call.args, reversed(call.args)):
        scale, bits = array_of(right), _read(walk, left)
        if scale is None or bits is None or bits.scale.shape or bits.scale != 1:
            continue
        wide = scale.astype(np.float32)
        return replace(bits, scale=wide) if np.isfinite(wide).all() else None
    return None


def _whole(walk: Walk, expr: Expr, dtype: str) -> np.ndarray | None:
    """Zero points as `dtype`: floats that are such integers, or integers that were widened."""
    cast = walk.defined_by(expr, "relax.astype")
    found = array_of(expr if cast is None else cast.args[0])
    if found is None:
        return None
    held = found.astype(np.float64)
    limits = np.iinfo(dtype)
    is_whole = np.all((held >= limits.min) & (held <= limits.max) & (held == np.rint(held)))
    return held.astype(dtype) if is_whole else None


def _of_axis(bits: _Bits) -> Expr | None:
    """A matrix with one scale and zero point, or one for each row or for each column."""
    dims = bits.values.shape
    if len(dims) != 2:
        return None
    vary = _varying(bits)
    if vary is None or len(vary) > 1:
        return None
    axis = vary[0] if vary else 0
    line = tuple(extent if a == axis else 1 for a, extent in enumerate(dims)) if vary else (1, 1)
    scale, zero = (np.broadcast_to(part, line).reshape(-1 if vary else ()) for part in (bits.scale, bits.zero))
    return _dequantised(bits.values, scale, zero, axis)


def _of_rows(bits: _Bits, shape: tuple[int, ...]) -> Expr | None:
    """A row for each block, as `shape`: the last axes, along which nothing varies, are a block, a part of a row."""
    dims, vary = bits.values.shape, _varying(bits)
    if not vary or vary[-1] == len(dims) - 1:
        return None
    blocks = dims[: vary[-1] + 1]
    lines = (*blocks, *(1,) * (len(dims) - len(blocks)))
    scale, zero = (np.broadcast_to(part, lines).reshape(-1) for part in (bits.scale, bits.zero))
    rows = bits.values.reshape(prod(blocks), -1)
    if shape[1] % rows.shape[1]:
        return None
    return relax.op.reshape(_dequantised(rows, scale, zero, 0), shape)


def _varying(bits: _Bits) -> tuple[int, ...] | None:
    """The axes of the values along which the scale or the zero point is not one; None where those have more axes."""
    dims = bits.values.shape
    parts = [np.broadcast_shapes(part.shape, (1,) * len(dims)) for part in (bits.scale, bits.zero)]
    whole = np.broadcast_shapes(*parts)
    if any(extent not in (1, own) for extent, own in zip(whole, dims, strict=False)) or len(whole) != len(dims):
        return None
    return tuple(axis for axis, extent in enumerate(whole) if extent > 1)


def _dequantised(values: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int) -> Expr:
    parts = (np.ascontiguousarray(part) for part in (values, scale, zero))
    return relax.op.dequantize(*map(make_const, parts), axis=axis, out_dtype="float32")
