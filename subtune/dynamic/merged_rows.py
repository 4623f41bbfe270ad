"""The pixels of all images as rows of one matrix: a pointwise convolution of any batch is a product of any rows.

    y[b, h, w, o] = sum(x[b, h, w, i] * W[o, i]) + r[b, h, w, o]     ->     y[p, o] = sum(x[p, i] * W[o, i]) + r[p, o]

A tile of rows then need not divide an image, and one kernel serves batches whose pixels fill no whole tiles. The arrays
are the same bytes.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
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
    images = tuple(int(dim) for dim in workload.args[-1].shape[:-1])
    if info.per_group or info.of_role("batch") or len(info.of_role("m")) < 2 or prod(images[1:]) < 2:
        return workload
    merging = _Merging(images)
    func = merging.func(workload.func)
    return Workload.of(func, workload.num_outputs) if merging.is_whole else workload


class _Merging:
    """Arrays whose first dims are `images`, with one dim in the place of these."""

    def __init__(self, images: tuple[int, ...]) -> None:
        self._images, self._rows = images, prod(images)
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
        analyzer = Analyzer()
        for iv in block.iter_vars:
            analyzer.bind(iv.var, iv.dom)

        def moved(buffer: Any, indices: Any, here: Any) -> tuple[Any, Any]:
            first, rest = (indices[:count], indices[count:]) if buffer in self._made else ([], indices)
            rest = [analyzer.simplify(index) if variables(index) & of_images else index for index in rest]
            is_row = all(analyzer.can_prove_equal(a, b) for a, b in zip(first, along, strict=False))
            self.is_whole &= is_row and all(variables(index).isdisjoint(of_images) for index in rest)
            return self._made.get(buffer, buffer), [row.var, *rest] if first else rest

        values = dict(zip(along, self._unfolded(row.var), strict=True))
        return with_axes(block, [row, *kept], values, moved)

    def _unfolded(self, row: Any) -> list[Any]:
        found = []
        for extent in reversed(self._images):
            found.append(row % extent)
            row = row // extent
        return found[::-1]


def _number(dim: Any) -> int:
    return int(dim) if isinstance(dim, int | tirx.IntImm) else -1
