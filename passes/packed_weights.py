"""Products with constant weights of 4 or 8 bits that a kernel reads as they are, and makes floats of in registers.

    matmul(x[M, K], permute_dims(reshape(dequantize(q[N * blocks, size], scale, zero, axis=0))))
->  matmul(x[M, K], permute_dims(loops(packed, scale, zero)))

    weight[n, k] = (float(q[n, k]) - zero[n, k // g]) * scale[n, k // g]

`packed` is uint8 [N, ceil(K / 2)], with element k of a row in nibble k % 2 of byte k // 2, the lower one first; or of 8
bits uint8 or int8 [N, K]. `scale` is [N, blocks], `zero` uint8 alike, or left out where it is one number for all.
Weights are float32, or of the half that is multiplied, and so are scales that it holds exactly: the product with one is
rounded once either way.

With few rows a product takes as long as its weights take to be read, and these are an eighth or a quarter of floats.
With many it takes as long as it multiplies. Such a product, or one that shares its weights, reads floats that are made
when the model is compiled; constant folding leaves what grows so much to the time when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Call

from subtune.core.forms import ANY, Forms
from subtune.passes.exprs import (
    Expr,
    array_of,
    dtype_of,
    ints,
    is_float,
    is_uniform,
    make_const,
    op_name,
    shape_of,
)
from subtune.passes.halves import half_of
from subtune.passes.rewriter import Walk, rewrite

_LEAST_BLOCK = 16
_NIBBLE, _SIGN = 8, 128
"""Between an integer with a sign and the one without it that has the same bits but the first."""


@dataclass(frozen=True, slots=True)
class _Weights:
    """What a dequantize makes, as a matrix.

    Attributes:
        values: [rows, columns] of int8 or uint8.
        scale, zero: for each row of `values` (`along` is 1), or for each column (0): [that, blocks].
        size: elements of a block.
    """

    values: np.ndarray
    scale: np.ndarray
    zero: np.ndarray
    along: int
    size: int

    def by_column(self) -> _Weights | None:
        """The same with a scale and a zero point for each column and block of it, or None where those go by row."""
        if self.along == 0:
            return self
        if not (is_uniform(self.scale) and is_uniform(self.zero)):
            return None
        rows, columns = self.values.shape
        scale, zero = (np.broadcast_to(array[:1, :1], (columns, 1)) for array in (self.scale, self.zero))
        return _Weights(self.values, scale, zero, 0, rows)

    def floats(self) -> np.ndarray:
        """scale * (values - zero) in float32, of which the difference is exact."""
        values = self.values if self.along else self.values.T
        wide = values.astype("float32")
        for block in range(self.scale.shape[1]):
            part = wide[:, block * self.size : (block + 1) * self.size]
            part -= self.zero[:, block : block + 1].astype("float32")
            part *= self.scale[:, block : block + 1]
        return wide if self.along else wide.T


def packed_weights(mod: tvm.IRModule, forms: Forms = ANY, asked: str = "") -> tvm.IRModule:
    """Products of up to `forms.packed_rows` rows read bits that nobody else reads, all others floats.

    Args:
        asked: the half of products that the user wants, "" for the model's own.
    """
    if not forms.packed_rows or not _dequantises(mod):
        return mod
    own = half_of(mod)
    half = (asked or (own if own in forms.halves else "")) if forms.packed_halves else ""
    loops = relax.BlockBuilder(mod)
    in_bits = partial(_in_bits, loops, forms, half or "float32")
    rules = (in_bits,) if half or forms.packed_floats else ()
    new = rewrite(mod, {"relax.matmul": (*rules, partial(_in_floats, {}))})
    made = loops.get()
    kept = {gvar.name_hint for gvar in new.get_global_vars()}
    added = {gvar: func for gvar, func in made.functions_items() if gvar.name_hint not in kept}
    return tvm.IRModule({**dict(new.functions_items()), **added}, new.attrs, new.global_infos) if added else new


def _dequantises(mod: tvm.IRModule) -> bool:
    """Whether a constant is: to walk all of a model for what it has not takes longer than this look."""
    return any(
        op_name(binding.value) == "relax.dequantize" and isinstance(binding.value.args[0], tvm.ir.GenericConst)
        for block in mod["main"].body.blocks
        for binding in block.bindings
    )


def _in_bits(loops: Any, forms: Forms, dtype: str, walk: Walk, call: Call) -> Expr | None:
    data, weight = call.args
    rows, dims = shape_of(data), shape_of(weight)
    if (
        rows is None
        or dims is None
        or len(dims) != 2
        or not is_float(dtype_of(data))
        or prod(rows[:-1]) > forms.packed_rows
    ):
        return None
    if array_of(data) is not None or 1 in dims:  # a vector has nothing to gain
        return None
    whole = _weights(walk, weight, is_alone=True)
    found = None if whole is None else whole.by_column()  # of [K, N]: the sum runs along rows
    if found is None or not _fits(found.size, dims[0], forms):
        return None
    parts = _packed(found.values.T, found.scale, found.zero)
    if parts is None:
        return None
    made = _loops(loops, parts, dims[0], found.size, dtype)
    made = made if dtype == dtype_of(weight) else relax.op.astype(made, dtype_of(weight))
    return relax.op.matmul(data, relax.op.permute_dims(made, [1, 0]), call.attrs.out_dtype)


def _in_floats(made: dict[Any, Expr], walk: Walk, call: Call) -> Expr | None:
    """Weights of constants, of which `made` has those that were made floats before."""
    data, weight = call.args
    if weight not in made:
        found = _weights(walk, weight, is_alone=False)
        if found is None:
            return None
        made[weight] = make_const(np.ascontiguousarray(found.floats().astype(dtype_of(weight))))
    return relax.op.matmul(data, made[weight], call.attrs.out_dtype)


def _fits(size: int, length: int, forms: Forms) -> bool:
    """Whether the device's kernels read rows of `length` in blocks of `size`: powers of two, or a whole row."""
    is_whole, is_even = size >= length, not size & (size - 1)
    if not forms.packed_block:
        return is_whole or (size >= _LEAST_BLOCK and is_even)
    return length % forms.half_row == 0 and (is_whole or (size >= forms.packed_block and is_even and not length % size))


def _weights(walk: Walk, expr: Expr, is_alone: bool) -> _Weights | None:
    """The constants of which `expr` is made, in one of the importers' forms.

    Args:
        is_alone: nothing else reads what is made of them.
    """
    call = walk.definition(expr)
    name = op_name(call)
    if not isinstance(expr, tvm.ir.Var) or (is_alone and not walk.has_one_use(expr)):
        return None
    if name == "relax.dequantize":
        return _of_axis(call)
    if name not in ("relax.astype", "relax.permute_dims", "relax.strided_slice", "relax.reshape"):
        return None
    found = _weights(walk, call.args[0], is_alone)
    if found is None or name == "relax.astype":
        return found if is_float(dtype_of(call)) else None
    if name == "relax.permute_dims":
        axes = None if call.attrs.axes is None else ints(call.attrs.axes)
        return _turned(found) if axes in (None, (1, 0)) else None
    return _cut(found, call) if name == "relax.strided_slice" else _of_blocks(found, call)


def _of_axis(call: Call) -> _Weights | None:
    """One scale and zero point, or one for each position of an axis."""
    values, scale, zero = (array_of(arg) for arg in call.args)
    if values is None or scale is None or zero is None or values.ndim != 2 or dtype_of(call) != "float32":
        return None
    if str(values.dtype) not in ("int8", "uint8") or str(scale.dtype) != "float32" or zero.dtype != values.dtype:
        return None
    axis = 0 if scale.size == 1 else int(call.attrs.axis) % 2
    columns = np.broadcast_to(scale.reshape(-1, 1), (values.shape[axis], 1))
    points = np.broadcast_to(zero.reshape(-1, 1), (values.shape[axis], 1))
    return _Weights(values, columns, points, 1 - axis, values.shape[1 - axis])


def _of_blocks(found: _Weights, call: Call) -> _Weights | None:
    """A row for each block of a row of the matrix."""
    dims = shape_of(call)
    if dims is None or len(dims) != 2 or found.along != 1 or found.scale.shape[1] != 1 or dims[1] % found.size:
        return None
    blocks = (dims[0], dims[1] // found.size)
    return _Weights(found.values.reshape(dims), found.scale.reshape(blocks), found.zero.reshape(blocks), 1, found.size)


def _cut(found: _Weights, call: Call) -> _Weights | None:
    """The first elements of every row, of which whole blocks were padded."""
    dims = shape_of(call)
    if dims is None or found.along != 1 or dims[0] != found.values.shape[0]:
        return None
    axes, begin, _, *steps = (ints(arg.values if hasattr(arg, "values") else arg.fields) for arg in call.args[1:])
    if axes != (1,) or begin != (0,) or steps not in ([], [(1,)]) or -(-dims[1] // found.size) != found.scale.shape[1]:
        return None
    return _Weights(found.values[:, : dims[1]], found.scale, found.zero, 1, found.size)


def _turned(found: _Weights) -> _Weights:
    return _Weights(found.values.T, found.scale, found.zero, 1 - found.along, found.size)


@dataclass(frozen=True, slots=True)
class _Packed:
    """[N, ...] each; a zero point is a number, or for each block a byte."""

    bits: int
    packed: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | int


def _packed(values: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> _Packed | None:
    """The bits of [N, K] integers."""
    if not values.size:
        return None
    low, high = int(values.min()), int(values.max())
    is_signed = str(values.dtype) == "int8"
    bits = 4 if (low >= -_NIBBLE and high < _NIBBLE if is_signed else high < 2 * _NIBBLE) else 8
    shift = 0 if not is_signed else _NIBBLE if bits == 4 else _SIGN if zero.any() else 0
    wide = zero.astype(np.int16) + shift
    points = int(wide.flat[0]) if (wide == wide.flat[0]).all() else wide.astype(np.uint8)
    if is_signed and shift == 0:
        return _Packed(bits, np.ascontiguousarray(values), scale, points)
    bytes_of = np.ascontiguousarray(values).view(np.uint8) + np.uint8(shift)
    if bits == 4:
        bytes_of = np.pad(bytes_of, [(0, 0), (0, bytes_of.shape[1] % 2)])
        bytes_of = bytes_of[:, ::2] | bytes_of[:, 1::2] << np.uint8(4)
    return _Packed(bits, bytes_of, scale, points)


def _loops(bb: Any, parts: _Packed, length: int, size: int, dtype: str) -> Call:
    """[N, length] of the bits, as loops."""
    scale, exact = np.ascontiguousarray(parts.scale), "float32"
    if dtype != exact and np.array_equal(scale.astype(dtype).astype(exact), scale):
        scale, exact = scale.astype(dtype), dtype
    of_block = [] if isinstance(parts.zero, int) else [parts.zero]

    def weights(packed: Any, scale: Any, zero: Any = parts.zero) -> Any:
        def one(n: Any, k: Any) -> Any:
            block = tirx.floordiv(k, size) if size < length else tirx.const(0, k.ty)
            whole = (nibble(packed, n, k) if parts.bits == 4 else packed(n, k)).astype(exact)
            if isinstance(zero, te.Tensor):
                whole = whole - zero(n, block).astype(exact)
            elif zero:
                whole = whole - tirx.const(float(zero), exact)
            return (whole * scale(n, block)).astype(dtype)

        return te.compute((parts.packed.shape[0], length), one, name="weight")

    return bb.call_te(weights, *map(make_const, (parts.packed, scale, *of_block)), primfunc_name_hint="weights")


def nibble(packed: Any, n: Any, k: Any) -> Any:
    """Element k of row n, uint8, of bytes that hold two."""
    shift = (tirx.floormod(k, 2) * 4).astype("uint8")
    return (packed(n, tirx.floordiv(k, 2)) >> shift) & tirx.const(15, "uint8")
