"""An anchor whose tile does not divide its axes computes on padded axes; the epilogue stores only what exists.

    C[m, n] += A[m, k] * B[n, k]          m < 197, n < 1000
->  Bp[n, k] = B[n, k] if n < 1000 else 0                      (a constant's padding is done at compile time)
    Cp[m, n] += A[min(m, 196), k] * Bp[n, k]   m < 203, n < 1024
    D[m, n] = epilogue(Cp[m, n])          m < 197, n < 1000

Rows beyond the end repeat the last one, so nothing is read out of bounds, and their results are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.patterns.contraction import Contraction
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.substitute import substitute


def pad_axes(func: PrimFunc, block_name: str, info: Contraction, extents: Mapping[int, int]) -> PrimFunc:
    """`func` with the anchor's axes (by index) extended to `extents`. It computes the same as before."""
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if _holds(stage, block_name))
    anchor = stage_block(stages[at])
    axes = {iv.var: i for i, iv in enumerate(anchor.iter_vars)}
    store = anchor.body
    allocated = list(func.body.block.alloc_buffers)
    new_stages = stages[:at]

    # the output, with room for the padding
    c_shape = [
        _padded_dim(dim, axes.get(index) if isinstance(index, ir.Var) else None, extents)
        for dim, index in zip(store.buffer.shape, store.indices, strict=True)
    ]
    c_padded = tirx.decl_buffer(c_shape, str(store.buffer.dtype), f"{store.buffer.name}_padded")
    is_output = any(p.same_as(store.buffer) for p in func.params)
    if not is_output:
        allocated = [b for b in allocated if not b.same_as(store.buffer)]
    allocated.append(c_padded)

    # the second operand, with zeros in the padding
    b_old = anchor.reads[info.b.read].source
    b_new = b_old
    if info.n.index in extents:
        b_shape = [
            _padded_dim(dim, axis if axis >= 0 else None, extents)
            for dim, axis in zip(b_old.shape, info.b.axes, strict=True)
        ]
        b_new = tirx.decl_buffer(b_shape, str(b_old.dtype), f"{b_old.name}_padded")
        allocated.append(b_new)
        new_stages = [*new_stages, _padding_stage(b_old, b_new)]

    clamped = {iv.var: tirx.Min(iv.var, iv.dom.extent - 1) for i, iv in enumerate(anchor.iter_vars) if i in extents}

    def rewrite_load(load: ir.TensorLoad) -> Any:
        if load.source.same_as(store.buffer):
            return tirx.BufferLoad(c_padded, list(load.indices))
        if load.source.same_as(b_old) and not b_new.same_as(b_old):
            return tirx.BufferLoad(b_new, list(load.indices))
        if load.source.same_as(b_old):
            return load
        return tirx.BufferLoad(load.source, [substitute(i, clamped) for i in load.indices])

    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, rewrite_load))
    body = tirx.BufferStore(c_padded, value, list(store.indices))
    init = tirx.BufferStore(c_padded, anchor.init.value, list(store.indices))
    new_stages.append(nest(anchor.name_hint, anchor.iter_vars, extents, body, init))
    if is_output:
        new_stages.append(_copy_stage(c_padded, store.buffer))

    def follow(load: ir.TensorLoad) -> Any:
        return tirx.BufferLoad(c_padded, list(load.indices)) if load.source.same_as(store.buffer) else load

    for stage in stages[at + 1 :]:
        block = stage_block(stage)
        epilogue = tvm_ffi.structural_map(block.body, (ir.TensorLoad, follow))
        new_stages.append(nest(block.name_hint, block.iter_vars, {}, epilogue, block.init))
    return with_stages(func, new_stages, allocated)


def _padded_dim(dim: Any, axis: int | None, extents: Mapping[int, int]) -> Any:
    return tirx.const(extents[axis], "int64") if axis is not None and axis in extents else dim


def _holds(stage: Any, block_name: str) -> bool:
    return bool(stage_block(stage).name_hint == block_name)


def _padding_stage(source: Any, padded: Any) -> Any:
    axes = [tirx.Var(f"p{i}", "int64") for i in range(len(source.shape))]
    inside = [var < dim for var, dim, new in zip(axes, source.shape, padded.shape, strict=True) if not _same(dim, new)]
    value: Any = tirx.BufferLoad(source, list(axes))
    if inside:
        value = tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, str(source.dtype)))
    iter_vars = [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), dim), var, 0) for var, dim in zip(axes, padded.shape, strict=True)
    ]
    return nest(padded.name, iter_vars, {}, tirx.BufferStore(padded, value, list(axes)), None)


def _copy_stage(padded: Any, output: Any) -> Any:
    axes = [tirx.Var(f"o{i}", "int64") for i in range(len(output.shape))]
    iter_vars = [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), dim), var, 0) for var, dim in zip(axes, output.shape, strict=True)
    ]
    body = tirx.BufferStore(output, tirx.BufferLoad(padded, list(axes)), list(axes))
    return nest(f"{output.name}_store", iter_vars, {}, body, None)


def _same(a: Any, b: Any) -> bool:
    return int(a) == int(b)
