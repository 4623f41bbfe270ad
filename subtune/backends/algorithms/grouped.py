"""A grouped convolution as a batch of products, one for every few groups.

    C[m, f] += A[m, f // per_group * depth + k] * B[f, k]                                f: columns of all groups
->  C[m, s * columns + j] += A[m, s * channels + i] * D[s, j, i]          s: `merge` groups each, D block-diagonal

Tensor cores multiply 16 columns by 16 channels at least: where a group has fewer, several become one product whose
weights are zero off the diagonal. Channels may be padded with zeros to `depth`, so that a step over k is within one tap
of the window. Constant weights are brought into that form once, at compile time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.contraction import Contraction, contraction
from subtune.tir.blocks import all_blocks, is_reduction, nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import loads, variables
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Diagonal:
    """Weights, their columns along dim `column` and channels along dim `depth`, as `[s, columns, *taps, channels]`.

    `channels`: of a product, zeros behind its groups' own included.
    """

    original: tuple[int, ...]
    column: int
    depth: int
    per_group: int
    merge: int
    channels: int

    @property
    def taps(self) -> tuple[int, ...]:
        return tuple(extent for d, extent in enumerate(self.original) if d not in (self.column, self.depth))

    @property
    def shape(self) -> tuple[int, ...]:
        columns = self.merge * self.per_group
        return self.original[self.column] // columns, columns, *self.taps, self.channels

    def __call__(self, array: np.ndarray) -> np.ndarray:
        groups = np.moveaxis(array, (self.column, self.depth), (0, -1))
        groups = groups.reshape(-1, self.merge, self.per_group, *groups.shape[1:])
        packed = np.zeros((*groups.shape[:-1], self.merge, groups.shape[-1]), array.dtype)
        for i in range(self.merge):
            packed[:, i, ..., i, :] = groups[:, i]
        packed = packed.reshape(*self.shape[:-1], -1)
        beyond = self.channels - packed.shape[-1]
        return np.pad(packed, [(0, 0)] * (packed.ndim - 1) + [(0, beyond)])


@dataclass(frozen=True, slots=True)
class Merged:
    """`workload` computes what the grouped convolution does, of parameter `param` in the form that `diagonal` makes.

    Without `diagonal` the weights stay as they are: they are no constant, and every group is a product of its own.
    """

    workload: Workload
    param: int
    diagonal: Diagonal | None


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The reduction among the stages: its block, and the positions among its axes of the columns and the channels."""

    at: int
    block: Any
    info: Contraction
    column: int
    depth: int


@lru_cache(maxsize=32)
def merged(workload: Workload, merge: int, depth: int = 0) -> Merged | NotApplicable:
    """`workload`, a grouped convolution, as a batch of products of `merge` groups each, or why that is impossible.

    `depth`: channels of a product with zeros behind them; 0 for the groups' own.
    """
    func = workload.func
    anchor = _anchor(func)
    if isinstance(anchor, NotApplicable):
        return anchor
    info = anchor.info
    per_group, n = info.per_group, info.axes[anchor.column].extent
    if n % (per_group * merge) or (merge > 1 and not info.b.is_constant):
        return NotApplicable(f"{n // per_group} groups are no products of {merge} with constant weights")
    if info.b.param < 0 or any(axis < 0 for axis in info.b.axes):
        return NotApplicable("the weights are computed, or indexed by more than their own axes")
    dims = info.b.axes.index(anchor.column), info.b.axes.index(anchor.depth)
    own_depth = merge * info.axes[anchor.depth].extent
    if depth and (depth < own_depth or not info.b.is_constant):
        return NotApplicable(f"{depth} channels, with constant weights, are not {own_depth} with zeros behind them")
    channels = depth or own_depth
    diagonal = Diagonal(info.b.shape, *dims, per_group, merge, channels) if info.b.is_constant else None
    params = list(func.params)
    if diagonal is not None:
        own = params[info.b.param]
        params[info.b.param] = tirx.decl_buffer(
            [_i64(d) for d in diagonal.shape], str(own.dtype), f"{own.name}_diagonal"
        )
    narrow = anchor.block.body.buffer
    *outer, last = narrow.shape
    split = [*outer, _i64(int(last) // (merge * per_group)), _i64(merge * per_group)]
    sums = tirx.decl_buffer(split, str(narrow.dtype), f"{narrow.name}_groups")
    stages = root_stages(func)
    source = anchor.block.reads[info.a.read].source
    grouped = _grouped(source, own_depth, channels) if channels > own_depth else None
    stages[anchor.at] = _product(anchor, func.params[info.b.param], params[info.b.param], sums, diagonal, grouped)
    split_buffers = {narrow: sums}
    behind = [_behind(stage, split_buffers, func) for stage in stages[anchor.at + 1 :]]
    if any(stage is None for stage in behind):
        return NotApplicable("what follows the sums has another shape")
    stages[anchor.at + 1 :] = behind
    if any(param.same_as(narrow) for param in func.params):
        stages.append(_joined(narrow, sums))
    buffers = [*(b for b in func.body.block.alloc_buffers if b not in split_buffers), *split_buffers.values()]
    if grouped is not None:
        stages.insert(anchor.at, _padded(source, grouped, own_depth))
        buffers.append(grouped)
    made = with_stages(func, stages, buffers, params)
    return Merged(Workload.of(made, workload.num_outputs), info.b.param, diagonal)


def _anchor(func: PrimFunc) -> _Anchor | NotApplicable:
    try:
        sch = Schedule(func)
        reductions = [b for b in all_blocks(sch) if is_reduction(sch.get(b))]
    except (ScheduleError, ValueError, RuntimeError) as e:
        return NotApplicable(f"not made of schedulable blocks: {str(e).strip().splitlines()[-1]}")
    if len(reductions) != 1:
        return NotApplicable(f"{len(reductions)} reductions, a convolution has one")
    info = contraction(sch, reductions[0])
    if isinstance(info, NotApplicable):
        return info
    if not info.per_group:
        return NotApplicable("no groups")
    at = next(i for i, stage in enumerate(root_stages(func)) if is_reduction(stage_block(stage)))
    block = stage_block(root_stages(func)[at])
    a = next(load for load in loads(block.body.value) if load.source.same_as(block.reads[info.a.read].source))
    column = info.n.index
    inner = variables(a.indices[-1]) - {block.iter_vars[column].var}
    depth = next((axis.index for axis in info.of_role("k") if block.iter_vars[axis.index].var in inner), -1)
    if len(inner) != 1 or depth < 0 or depth not in info.b.axes:
        return NotApplicable("the channels of a group are no axis of their own")
    expected = tirx.floordiv(block.iter_vars[column].var, _i64(info.per_group)) * _i64(info.axes[depth].extent)
    if not _is_zero(a.indices[-1] - expected - block.iter_vars[depth].var, block):
        return NotApplicable("the channels of a group do not follow one another")
    return _Anchor(at, block, info, column, depth)


def _is_zero(expr: Any, block: Any) -> bool:
    from tvm.sym.analyzer import Analyzer

    analyzer = Analyzer()
    for iv in block.iter_vars:
        analyzer.bind(iv.var, iv.dom)
    found = analyzer.simplify(expr)
    return isinstance(found, tirx.IntImm) and int(found) == 0


def _grouped(source: Any, own: int, channels: int) -> Any:
    """A buffer for `source`, whose last dim is channels, in products of `own` channels and zeros behind them."""
    *outer, last = source.shape
    shape = [*outer, _i64(int(last) // own), _i64(channels)]
    return tirx.decl_buffer(shape, str(source.dtype), f"{source.name}_groups")


def _padded(source: Any, grouped: Any, own: int) -> Any:
    """The stage that writes `grouped`: no kernel keeps it, it is part of the copy to shared memory."""
    iter_vars = _elements(grouped)
    axes = [iv.var for iv in iter_vars]
    *outer, s, i = axes
    value = tirx.BufferLoad(source, [*outer, s * _i64(own) + i])
    guarded = tirx.if_then_else(i < _i64(own), value, tirx.const(0, str(source.dtype)))
    return nest(f"{source.name}_groups", iter_vars, {}, tirx.BufferStore(grouped, guarded, axes), None)


# long: one block made over, every axis and every load of it
def _product(anchor: _Anchor, own: Any, packed: Any, sums: Any, diagonal: Diagonal | None, grouped: Any) -> Any:
    """The stage of the products; its axes are the convolution's, that of the columns in two.

    `grouped`: what it reads in place of its input, the channels in two dims; None for the input.
    """
    block, info = anchor.block, anchor.info
    columns = int(sums.shape[-1])
    channels = columns // info.per_group * info.axes[anchor.depth].extent
    if grouped is not None:
        channels = int(grouped.shape[-1])
    s, j, i = (tirx.Var(name, "int64") for name in ("s", "j", "i"))
    of_column, of_depth = (block.iter_vars[axis].var for axis in (anchor.column, anchor.depth))
    axes = []
    for position, iv in enumerate(block.iter_vars):
        if position == anchor.column:
            axes += [_axis(s, info.n.extent // columns, iv), _axis(j, columns, iv)]
        else:
            axes.append(_axis(i, channels, iv) if position == anchor.depth else iv)
    taps = [iv.var for iv, axis in zip(block.iter_vars, info.axes, strict=True)]
    by_dim = [
        taps[axis] for d, axis in enumerate(info.b.axes) if diagonal and d not in (diagonal.column, diagonal.depth)
    ]
    source = block.reads[info.a.read].source

    def moved(load: ir.TensorLoad) -> Any:
        if load.source.same_as(source):
            if grouped is not None:
                return tirx.BufferLoad(grouped, [*load.indices[:-1], s, i])
            return tirx.BufferLoad(source, [*load.indices[:-1], s * channels + i])
        if load.source.same_as(own) and diagonal is not None:
            return tirx.BufferLoad(packed, [s, j, *by_dim, i])
        if load.source.same_as(block.body.buffer):
            return tirx.BufferLoad(sums, [*load.indices[:-1], s, j])
        return load

    values = {of_column: s * columns + j, of_depth: i}
    value = substitute(tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, moved)), values)
    indices = [*block.body.indices[:-1], s, j]
    init = tirx.BufferStore(sums, block.init.value, indices)
    return nest(block.name_hint, axes, {}, tirx.BufferStore(sums, value, indices), init)


def _behind(stage: Any, split: dict[Any, Any], func: PrimFunc) -> Any:
    """A stage behind the products, its columns in two axes as those of the sums are; None where that is impossible.

    One axis over all columns would have one bound for all of them: tiles that reach beyond a product's columns would
    store into the next one's. `split` has the buffers whose columns are in two dims by the ones they replace; gets the
    stage's own, if that is no parameter.
    """
    block = stage_block(stage)
    read = [load for load in loads(block.body) if load.source in split]
    if not read:
        return stage
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not len(store.indices) or block.init is not None:
        return None
    *outer, last = store.indices
    columns = split[read[0].source].shape[-1]
    if not any(iv.var.same_as(last) and int(iv.dom.extent) % int(columns) == 0 for iv in block.iter_vars):
        return None
    if not all(load.indices[-1].same_as(last) for load in read):
        return None
    s, j = (tirx.Var(name, "int64") for name in ("s", "j"))

    def moved(load: ir.TensorLoad) -> Any:
        if load.source not in split:
            return load
        return tirx.BufferLoad(split[load.source], [*load.indices[:-1], s, j])

    value = tvm_ffi.structural_map(store.value, (ir.TensorLoad, moved))
    value = substitute(value, {last: s * columns + j})
    axes = []
    for iv in block.iter_vars:
        halves = [_axis(s, int(iv.dom.extent) // int(columns), iv), _axis(j, int(columns), iv)]
        axes += halves if iv.var.same_as(last) else [iv]
    own = store.buffer
    if any(param.same_as(own) for param in func.params):
        return nest(block.name_hint, axes, {}, tirx.BufferStore(own, value, [*outer, s * columns + j]), None)
    shape = [*own.shape[:-1], tirx.floordiv(own.shape[-1], columns), columns]
    split[own] = tirx.decl_buffer([_i64(int(extent)) for extent in shape], str(own.dtype), f"{own.name}_groups")
    return nest(block.name_hint, axes, {}, tirx.BufferStore(split[own], value, [*outer, s, j]), None)


def _joined(narrow: Any, sums: Any) -> Any:
    """The stage that stores the sums as the convolution's result, which is an output itself."""
    iter_vars = _elements(sums)
    axes = [iv.var for iv in iter_vars]
    *outer, s, j = axes
    store = tirx.BufferStore(narrow, tirx.BufferLoad(sums, axes), [*outer, s * sums.shape[-1] + j])
    return nest(f"{narrow.name}_joined", iter_vars, {}, store, None)


def _elements(buffer: Any) -> list[Any]:
    """Axes over all of a buffer."""
    ranges = [ir.Range(_i64(0), extent) for extent in buffer.shape]
    return [tirx.IterVar(r, tirx.Var(f"o{d}", "int64"), tirx.IterVar.DataPar) for d, r in enumerate(ranges)]


def _axis(var: Any, extent: int, like: Any) -> Any:
    return tirx.IterVar(ir.Range(_i64(0), _i64(extent)), var, int(like.iter_type))


def _i64(value: int) -> Any:
    return tirx.const(value, "int64")
