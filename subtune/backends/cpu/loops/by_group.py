"""A grouped convolution as a batch of groups, the columns of each of which can then be padded to whole vectors.

    C[m, n] += A[m, n // g * K + k] * B[n, k]                  n < G * g, g columns to a group
    D[m, n] = epilogue(C[m, n])
->  Bg[b, j, k] = B[b * g + j, k]                              b < G, j < g; of a constant at compile time
    Cg[m, b, j] += A[m, b * K + k] * Bg[b, j, k]
    D[m, b * g + j] = epilogue(Cg[m, b, j])
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import ConstantTransform, NotApplicable
from subtune.patterns.contraction import Contraction
from subtune.tir.blocks import nest, root_stages, stage_block, with_axes, with_stages
from subtune.tir.expressions import loads


@dataclass(frozen=True, slots=True)
class GroupPacking:
    """A constant whose first dim is taken apart into `groups`, then packed."""

    groups: int
    packing: ConstantTransform

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packing.shape

    def __call__(self, array: np.ndarray) -> np.ndarray:
        return self.packing(array.reshape(self.groups, -1, *array.shape[1:]))


def by_group(func: PrimFunc, block_name: str, info: Contraction) -> PrimFunc | NotApplicable:
    """`func` with the columns of its anchor `block_name`, which `info` describes, as two axes: groups, and columns."""
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == block_name)
    anchor, after = stage_block(stages[at]), [stage_block(stage) for stage in stages[at + 1 :]]
    if not info.per_group or info.b.axes[0] != info.n.index or -1 in info.b.axes:
        return NotApplicable("no groups, or weights that do not lie along their columns")
    made, weights = anchor.body.buffer, anchor.reads[info.b.read].source
    columns = [_column(block, made) for block in after]
    if any(column is None or int(column.dom.extent) != info.n.extent for column in columns):
        return NotApplicable("what follows does not read one column for each that it makes")

    split = _Split(info, made, weights)
    is_output = any(param.same_as(made) for param in func.params)
    outputs = [split.of(block, column) for block, column in zip(after, columns, strict=True)]
    if is_output:
        outputs.insert(0, split.stored())
    new = [*stages[:at], split.copied(), split.of(anchor, anchor.iter_vars[info.n.index]), *outputs]
    kept = [buffer for buffer in func.body.block.alloc_buffers if not buffer.same_as(made)]
    return with_stages(func, new, [*kept, split.made, split.weights])


def _column(block: Any, made: Any) -> Any | None:
    """The axis of `block` that runs along the columns of `made`, where it is one and the same."""
    found = {load.indices[-1] for load in loads(block.body.value) if load.source.same_as(made)}
    return next((iv for iv in block.iter_vars if found == {iv.var}), None)


class _Split:
    """Blocks with an axis of columns -> the same with two; the anchor's result and its weights with a dim for each."""

    def __init__(self, info: Contraction, made: Any, weights: Any) -> None:
        self._size = info.per_group
        self._old_made, self._old_weights = made, weights
        parts = [tirx.const(part, "int64") for part in (info.n.extent // self._size, self._size)]
        self.made = tirx.decl_buffer([*made.shape[:-1], *parts], str(made.dtype), f"{made.name}_groups")
        self.weights = tirx.decl_buffer([*parts, *weights.shape[1:]], str(weights.dtype), f"{weights.name}_groups")

    def of(self, block: Any, column: Any) -> Any:
        """The stage of `block`, which is no reduction or the anchor."""
        group, at = tirx.Var("group", "int64"), tirx.Var("at", "int64")
        axes: list[Any] = []
        for iv in block.iter_vars:
            parts = zip((group, at), (self.weights.shape[0], self.weights.shape[1]), strict=True)
            axes += [_axis(var, extent) for var, extent in parts] if iv.var.same_as(column.var) else [iv]
        whole = {column.var: group * tirx.const(self._size, "int64") + at}

        def moved(buffer: Any, indices: Any, here: Any) -> tuple[Any, Any]:
            if buffer.same_as(self._old_made):
                return self.made, [*indices[:-1], group, at]
            if buffer.same_as(self._old_weights):
                return self.weights, [group, at, *indices[1:]]
            return buffer, [here(index) for index in indices]

        return with_axes(block, axes, whole, moved)

    def copied(self) -> Any:
        """The stage that takes the weights apart."""
        axes = [_axis(tirx.Var(f"w{i}", "int64"), dim) for i, dim in enumerate(self.weights.shape)]
        group, at, *rest = (iv.var for iv in axes)
        value = tirx.BufferLoad(self._old_weights, [group * tirx.const(self._size, "int64") + at, *rest])
        return nest(self.weights.name, axes, {}, tirx.BufferStore(self.weights, value, [group, at, *rest]), None)

    def stored(self) -> Any:
        """The stage that writes an output that is the anchor's result itself."""
        axes = [_axis(tirx.Var(f"o{i}", "int64"), dim) for i, dim in enumerate(self.made.shape)]
        *others, group, at = (iv.var for iv in axes)
        value = tirx.BufferLoad(self.made, [*others, group, at])
        column = group * tirx.const(self._size, "int64") + at
        body = tirx.BufferStore(self._old_made, value, [*others, column])
        return nest(f"{self._old_made.name}_store", axes, {}, body, None)


def _axis(var: Any, extent: Any) -> Any:
    return tirx.IterVar(ir.Range(tirx.const(0, "int64"), extent), var, tirx.IterVar.DataPar)
