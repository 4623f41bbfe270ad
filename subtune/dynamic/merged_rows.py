"""The pixels of all images as rows of one matrix: a pointwise convolution of any batch is a product of any rows.

    y[b, h, w, o] = sum(x[b, h, w, i] * W[o, i]) + r[b, h, w, o]     ->     y[p, o] = sum(x[p, i] * W[o, i]) + r[p, o]

A tile of rows then need not divide an image, and one kernel serves batches whose pixels fill no whole tiles. The arrays
are the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import ir, tirx

from subtune.backends.algorithms.strassen import unfold
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.axes import Axis
from subtune.patterns.contraction import contraction
from subtune.patterns.stages import anchored
from subtune.tir.blocks import root_stages, stage_block, with_axes, with_stages
from subtune.tir.expressions import variables


def with_merged_rows(workload: Workload) -> Workload:
    """The workload with one axis of rows; as it is where an element of the result is not that of one row."""
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return workload
    _, _, info = found
    rows = info.of_role("m")
    images = tuple(axis.extent for axis in rows)
    if info.per_group or info.of_role("batch") or images != workload.args[-1].shape[:-1] or prod(images[1:]) < 2:
        return workload
    merging = _Merging(rows)
    func = merging.func(workload.func)
    return Workload.of(func, workload.num_outputs) if merging.is_whole else workload


class _Merging:
    """Arrays whose first dims are the axes of images, with one dim in the place of these."""

    def __init__(self, axes: tuple[Axis, ...]) -> None:
        self._axes, self._images = axes, tuple(axis.extent for axis in axes)
        self._rows = prod(self._images)
        self._made: dict[Any, Any] = {}
        self.is_whole = True
        """Whether all that was seen goes through the rows one by one."""

    def func(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        params = [self._of(param) for param in func.params]
        allocated = [self._of(buffer) for buffer in func.body.block.alloc_buffers]
        return with_stages(func, [self._stage(stage_block(one)) for one in root_stages(func)], allocated, params)

    def _of(self, buffer: Any) -> Any:
        count = len(self._images)
        if tuple(map(_number, buffer.shape[:count])) != self._images:
            return buffer
        shape = [tirx.const(self._rows, "int64"), *buffer.shape[count:]]
        self._made[buffer] = tirx.decl_buffer(shape, str(buffer.dtype), buffer.name)
        return self._made[buffer]

    def _stage(self, block: Any) -> Any:
        count = len(self._images)
        along = list(block.body.indices[:count]) if block.body.buffer in self._made else []
        of_images = {*along}
        axes = {iv.var: iv for iv in block.iter_vars}
        extents = tuple(_number(axes[var].dom.extent) if var in axes else -1 for var in along)
        if extents != self._images or len(of_images) != count:
            self.is_whole = False
            return block
        row = tirx.IterVar(
            ir.Range(tirx.const(0, "int64"), tirx.const(self._rows, "int64")), tirx.Var("row", "int64"), 0
        )
        kept = [iv for iv in block.iter_vars if iv.var not in of_images]

        def moved(buffer: Any, indices: Any, here: Any) -> tuple[Any, Any]:
            first, rest = (indices[:count], indices[count:]) if buffer in self._made else ([], indices)
            # others stay axes, those of one element too: weights have to be read by their own
            rest = [index if variables(index).isdisjoint(of_images) else here(index) for index in rest]
            is_row = not first or here(self._folded(first)).same_as(row.var)
            self.is_whole &= is_row and all(row.var not in variables(index) for index in rest)
            return self._made.get(buffer, buffer), [row.var, *rest] if first else rest

        return with_axes(block, [row, *kept], dict(zip(along, unfold(row.var, self._axes), strict=True)), moved)

    def _folded(self, position: Sequence[Any]) -> Any:
        row = position[0]
        for index, extent in zip(position[1:], self._images[1:], strict=True):
            row = row * extent + index
        return row


def _number(dim: Any) -> int:
    return int(dim) if isinstance(dim, int | tirx.IntImm) else -1
