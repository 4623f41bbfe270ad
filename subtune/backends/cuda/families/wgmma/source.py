"""The parameter that a contraction's first operand is copied from, which may be padded with zeros on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.gemm_view import GemmView, gemm_view
from subtune.patterns.stages import Stages, anchored
from subtune.tir.expressions import conjuncts


def copied_obstacle(workload: Workload) -> str:
    """Why the hardware's copies do not give a contraction its first operand, a cast for example; "" where they do."""
    found = anchored(workload, contraction)
    source = found if isinstance(found, NotApplicable) else source_of(*found)
    return source.reason if isinstance(source, NotApplicable) else ""


def source_of(
    sch: Schedule, stages: Stages, info: Contraction, view: GemmView | None = None
) -> tuple[int, tuple[int, ...], tuple[int, ...]] | NotApplicable:
    """The parameter that A is read from: its extents (dims of one element left out), and the padding before.

    Args:
        view: of `info`; as `gemm_view` has it.
    """
    if info.b.param < 0 or len(stages.producers) > int(info.a.param < 0):
        return NotApplicable("an operand is computed before it is read")
    merged = view or gemm_view(info)
    if isinstance(merged, NotApplicable):
        return merged
    if info.a.param >= 0:
        return info.a.param, tuple(d.extent for d in merged.a), (0,) * len(merged.a)
    block = sch.get(stages.producers[0])
    found = padded_param(block, list(sch.mod["main"].params))
    if isinstance(found, NotApplicable):
        return found
    param, shape, before = found
    kept = [d for d, extent in enumerate(info.a.shape) if extent > 1]
    if len(kept) != len(merged.a):  # axes of k that were merged: not padded, then
        return NotApplicable("a padded operand with merged dims")
    return param, tuple(shape[d] for d in kept), tuple(before[d] for d in kept)


def padded_param(
    block: Any, params: list[Any], order: tuple[int, ...] | None = None
) -> tuple[int, tuple[int, ...], tuple[int, ...]] | NotApplicable:
    """`block` as zeros round a parameter: the parameter, its shape, and the zeros before it in every dim.

    `order`: of the parameter's dims, those of the block, where it is permuted as well.
    """
    why = NotApplicable("the prologue is no padding with zeros")
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, ir.Call):
        return why
    if not str(store.value.op.name).endswith("if_then_else"):
        return why
    condition, load, zero = store.value.args
    param = next((i for i, p in enumerate(params) if isinstance(load, ir.TensorLoad) and p.same_as(load.source)), -1)
    if param < 0 or not isinstance(zero, tirx.FloatImm | tirx.IntImm) or float(zero.value) != 0:
        return why
    order = order or tuple(range(len(store.indices)))
    if len(order) != len(store.indices) or len(order) != len(load.indices):
        return why
    axes, wholes = ([dims[i] for i in order] for dims in (store.indices, store.buffer.shape))
    shape = tuple(int(d) for d in load.source.shape)
    before = []
    for axis, index in zip(axes, load.indices, strict=True):
        offset = 0
        if isinstance(index, tirx.Sub) and isinstance(index.b, tirx.IntImm):
            index, offset = index.a, int(index.b)
        if not index.same_as(axis) or offset < 0:
            return why
        before.append(offset)
    needed: list[Any] = []
    idle: list[Any] = []  # what is padded on one side only may ask for the other as well
    for axis, offset, extent, whole in zip(axes, before, shape, wholes, strict=True):
        (needed if offset else idle).append(tirx.LE(_like(offset, axis), axis))
        (needed if offset + extent < int(whole) else idle).append(tirx.LT(axis, _like(offset + extent, axis)))
    given = conjuncts(condition)
    if not all(_is_among(bound, given) for bound in needed):
        return why
    return (param, shape, tuple(before)) if all(_is_among(x, (*needed, *idle)) for x in given) else why


def _is_among(expr: Any, others: Sequence[Any]) -> bool:
    return any(tvm_ffi.structural_equal(expr, other) for other in others)


def _like(value: int, axis: Any) -> Any:
    return tirx.const(value, axis.ty.dtype)
