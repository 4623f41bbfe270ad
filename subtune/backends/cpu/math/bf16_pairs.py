"""A contraction of bfloat16 operands, summed over pairs of its innermost reduction axis.

    C[m, n] += cast(f32, A[m, k]) * cast(f32, B[k, n])         k < K
->  Bp[q, n] = B[2q, n] | B[2q + 1, n] << 16                   int32; a constant's pairs are made at compile time
    C[m, n] = bf16_dot(C[m, n], A[m, 2q : 2q + 2], Bp[q, n])   q < ceil(K / 2)

An odd K is padded with a zero in both operands, A in a copy. From here on a pair is what a float32 is to other
contractions: loaded, broadcast and multiplied as one element of 32 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.bf16_ops import dot
from subtune.core.kernel import NotApplicable, Packing
from subtune.patterns.axes import Axis
from subtune.patterns.contraction import Contraction
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import loads, variables


@dataclass(frozen=True, slots=True)
class PairPacking:
    """A bfloat16 constant's dim `k_dim` in pairs (an odd one gets a zero), each an int32, then packed."""

    k_dim: int
    packing: Packing

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packing.shape

    def __call__(self, array: np.ndarray) -> np.ndarray:
        last = np.moveaxis(array.view(np.uint16), self.k_dim, -1)
        if last.shape[-1] % 2:
            last = np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, 1)])
        return self.packing(np.moveaxis(np.ascontiguousarray(last).view(np.int32), -1, self.k_dim))


@dataclass(frozen=True, slots=True)
class Paired:
    """`func` with its anchor over pairs; `info` describes that. `a_copy` is the block that copies A, "" if none."""

    func: PrimFunc
    info: Contraction
    b_pairs: str
    a_copy: str
    k_dim: int


def paired_axes(info: Contraction) -> tuple[Axis, ...] | NotApplicable:
    """The axes with the one that runs innermost in A counted in pairs."""
    if info.a.axes[-1] < 0 or info.axes[info.a.axes[-1]].role != "k":
        return NotApplicable("the first operand is not contiguous along a reduction axis")
    if info.a.axes[-1] not in info.b.axes or -1 in info.b.axes or len(set(info.b.axes)) != len(info.b.axes):
        return NotApplicable("the second operand is not indexed by axes alone")
    pair = info.a.axes[-1]
    return tuple(replace(a, extent=-(-a.extent // 2)) if a.index == pair else a for a in info.axes)


def in_pairs(func: PrimFunc, block_name: str, info: Contraction) -> Paired | NotApplicable:
    """Rewrite the anchor `block_name`, which `info` describes, to sum over pairs."""
    axes = paired_axes(info)
    if isinstance(axes, NotApplicable):
        return axes
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == block_name)
    anchor = stage_block(stages[at])
    factors = sides(anchor, anchor.iter_vars[info.n.index].var)
    if isinstance(factors, NotApplicable):
        return factors
    a_side, b_side = factors
    pair = info.a.axes[-1]
    extent = info.axes[pair].extent
    var = tirx.Var("vq", "int64")

    made: list[Any] = []
    a_load, a_copy = loads(a_side)[0], ""
    a_buffer = a_load.source
    if extent % 2 or not a_side.same_as(a_load):
        a_buffer, stage = _even_copy(a_side, a_load)
        a_copy = a_buffer.name
        made.append(stage)
    ramp = tirx.Ramp(var * tirx.const(2, "int64"), tirx.const(1, "int64"), 2)
    a_value = tirx.reinterpret("int32", tirx.BufferLoad(a_buffer, [*list(a_load.indices)[:-1], ramp]))

    b_load = loads(b_side)[0]
    k_dim = info.b.axes.index(pair)
    is_param = any(param.same_as(b_load.source) for param in func.params)
    b_buffer, stage = _pairs(b_side, b_load, k_dim, extent, can_read_pairs=is_param and b_side.same_as(b_load))
    made.append(stage)
    b_indices = [var if dim == k_dim else index for dim, index in enumerate(b_load.indices)]
    b_value = tirx.BufferLoad(b_buffer, b_indices)

    store = anchor.body
    c_value = tirx.BufferLoad(store.buffer, list(store.indices))
    body = tirx.BufferStore(store.buffer, dot(c_value, a_value, b_value), list(store.indices))
    iter_vars = [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), tirx.const(axes[i].extent, "int64")), var, int(iv.iter_type))
        if i == pair
        else iv
        for i, iv in enumerate(anchor.iter_vars)
    ]
    rewritten = nest(anchor.name_hint, iter_vars, {}, body, anchor.init)
    buffers = [*func.body.block.alloc_buffers, b_buffer, *([a_buffer] if a_copy else [])]
    paired = with_stages(func, [*stages[:at], *made, rewritten, *stages[at + 1 :]], buffers)
    a = replace(info.a, read=0, shape=_dims(a_buffer), param=-1 if a_copy else info.a.param)
    b = replace(info.b, read=1, shape=_dims(b_buffer), dtype="int32", param=-1)
    return Paired(paired, Contraction(axes, a, b, info.acc_dtype), b_buffer.name, a_copy, k_dim)


def sides(anchor: Any, n: Any) -> tuple[Any, Any] | NotApplicable:
    """The two factors as expressions of bfloat16, the one that `n` indexes second."""
    product = anchor.body.value.b
    wide = [product.a, product.b] if isinstance(product, tirx.Mul) else []
    if len(wide) != 2 or not all(isinstance(s, tirx.Cast) and str(s.value.ty) == "bfloat16" for s in wide):
        return NotApplicable("the operands are not bfloat16, multiplied in float32")
    first, second = (side.value for side in wide)
    return (first, second) if n in variables(second) else (second, first)


def _even_copy(side: Any, load: ir.TensorLoad) -> tuple[Any, Any]:
    """A copy of A as bfloat16, its last dim padded to an even extent, and the stage that makes it."""
    shape = _dims(load.source)
    even = [*shape[:-1], shape[-1] + shape[-1] % 2]
    buffer = tirx.decl_buffer([tirx.const(d, "int64") for d in even], "bfloat16", f"{load.source.name}_even")
    iter_vars = _iter_vars(even)
    index = [iv.var for iv in iter_vars]
    value = _at(side, load, index)
    if shape[-1] % 2:
        value = tirx.if_then_else(index[-1] < tirx.const(shape[-1], "int64"), value, tirx.const(0.0, "bfloat16"))
    return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, index), None)


def _pairs(side: Any, load: ir.TensorLoad, k_dim: int, extent: int, can_read_pairs: bool) -> tuple[Any, Any]:
    """B with its dim `k_dim` in pairs, as int32, and the stage that makes it."""
    shape = _dims(load.source)
    shape[k_dim] = -(-extent // 2)
    buffer = tirx.decl_buffer([tirx.const(d, "int64") for d in shape], "int32", f"{load.source.name}_pairs")
    iter_vars = _iter_vars(shape)
    index = [iv.var for iv in iter_vars]
    first = index[k_dim] * tirx.const(2, "int64")
    if can_read_pairs and k_dim == len(shape) - 1 and extent % 2 == 0:
        ramp = tirx.Ramp(first, tirx.const(1, "int64"), 2)
        value = tirx.reinterpret("int32", tirx.BufferLoad(load.source, [*index[:-1], ramp]))
    else:
        halves = []
        for k in (first, first + tirx.const(1, "int64")):
            element = _at(side, load, [k if dim == k_dim else i for dim, i in enumerate(index)])
            halves.append(tirx.Cast("int32", tirx.reinterpret("uint16", element)))
        low, high = halves
        if extent % 2:
            inside = first + tirx.const(1, "int64") < tirx.const(extent, "int64")
            high = tirx.if_then_else(inside, high, tirx.const(0, "int32"))
        value = low | (high << tirx.const(16, "int32"))
    return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, index), None)


def _at(side: Any, load: ir.TensorLoad, index: list[Any]) -> Any:
    """`side`, casts of `load`, at other indices."""
    moved = tirx.BufferLoad(load.source, index)
    return tvm_ffi.structural_map(side, (ir.TensorLoad, lambda _: moved))


def _iter_vars(shape: list[int]) -> list[Any]:
    return [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64")), tirx.Var(f"p{i}", "int64"), 0)
        for i, extent in enumerate(shape)
    ]


def _dims(buffer: Any) -> Any:
    return [int(dim) for dim in buffer.shape]
