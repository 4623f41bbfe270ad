"""PrimFuncs of a cache that lies in an array of more rows than it has: what appends rows to it, and what reads it.

C = [P, new] along an axis     ->    C[.., past + i, ..] = new[.., i, ..] where i < count, else 0
reads of C [.., length, ..]    ->    the same reads of C [.., capacity, ..]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from subtune.core.workload import CONSTANT_ARGS_ATTR
from subtune.tir.blocks import is_reduction, nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import choice_of, conjuncts, is_load_of, is_same, loads, number
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Append:
    """A PrimFunc whose only output is its parameter `source` with other rows behind it, along `axis`.

    Attributes:
        past: rows of the source.
        value: what row `v` of the output is, behind those, in terms of the axes of the last stage.
    """

    source: int
    axis: int
    past: int
    value: Any


def append_of(func: PrimFunc, source: int) -> Append | None:
    """What appends rows to the parameter `source`; None where the PrimFunc does something else."""
    param, out = func.params[source], func.params[-1]
    *before, last = root_stages(func)
    block = stage_block(last)
    if any(_loads_of(stage, param) for stage in before) or is_reduction(block) or not _stores_all(block, out):
        return None
    axis = _longer_axis(param, out)
    choice = choice_of(block.body.value)
    if axis is None or choice is None:
        return None
    past, (condition, first, second) = int(param.shape[axis]), choice
    along = block.iter_vars[axis].var
    if _is_at_least(condition, along, past):
        new, old = first, second
    elif _is_below(condition, along, past):
        new, old = second, first
    else:
        return None
    is_copy = is_load_of(old, param) and is_same(list(old.indices), [iv.var for iv in block.iter_vars])
    return Append(source, axis, past, new) if is_copy and not _loads_of(new, param) else None


def appending(func: PrimFunc, found: Append, rows: int, capacity: int) -> PrimFunc:
    """`func` without its source: it writes `rows` rows, of which those behind the last new one are zeros, into an array
    that has `capacity`, behind as many as the source had."""
    *before, last = root_stages(func)
    block, out = stage_block(last), func.params[-1]
    along = block.iter_vars[found.axis].var
    count = int(out.shape[found.axis]) - found.past
    analyzer = Analyzer()
    for place, iv in enumerate(block.iter_vars):
        analyzer.bind(iv.var, ir.Range(0, rows) if place == found.axis else iv.dom)
    value = _simplified(analyzer, substitute(found.value, {along: along + found.past}))
    value = tirx.if_then_else(along < count, value, tirx.const(0, str(out.dtype)))
    whole = resized(out, found.axis, capacity)
    at = [iv.var + found.past if place == found.axis else iv.var for place, iv in enumerate(block.iter_vars)]
    stage = nest(block.name_hint, block.iter_vars, {found.axis: rows}, tirx.BufferStore(whole, value, at), None)
    params = [param for place, param in enumerate(func.params[:-1]) if place != found.source]
    made = with_stages(func, [*before, stage], func.body.block.alloc_buffers, [*params, whole])
    constants = [int(place) for place in (func.attrs or {}).get(CONSTANT_ARGS_ATTR, ())]
    return made.with_attr(CONSTANT_ARGS_ATTR, [place - (place > found.source) for place in constants])


def padded_rows(func: PrimFunc, axis: int) -> int | None:
    """How many rows its output has, where a PrimFunc of one parameter does no more than to put zeros behind its rows
    along `axis`; None of any other."""
    stages = root_stages(func)
    if len(func.params) != 2 or len(stages) != 1:
        return None
    (param, out), block = func.params, stage_block(stages[0])
    if is_reduction(block) or not _stores_all(block, out) or _other_sizes(param, out) not in ([], [axis]):
        return None
    along, count = block.iter_vars[axis].var, int(param.shape[axis])
    condition, value, other = choice_of(block.body.value) or (None, block.body.value, tirx.const(0.0, "float32"))
    if not is_load_of(value, param) or not is_same(list(value.indices), [iv.var for iv in block.iter_vars]):
        return None
    bounds = [] if condition is None else conjuncts(condition)
    if number(other) != 0 or not all(_is_at_least(one, along, 0) or _is_below(one, along, count) for one in bounds):
        return None
    return int(out.shape[axis])


def reading(func: PrimFunc, places: Sequence[tuple[int, int, int]]) -> PrimFunc:
    """`func` whose parameters at `places` have other sizes: (place, axis, size). It reads the same elements of them."""
    params, values = list(func.params), {}
    for place, axis, size in places:
        values[params[place]] = params[place] = resized(params[place], axis, size)
    return PrimFunc(params, substitute(func.body, values), func.ret_type, func.attrs)


def resized(buffer: Any, axis: int, size: int) -> Any:
    shape = [tirx.const(size, "int64") if place == axis else dim for place, dim in enumerate(buffer.shape)]
    return tirx.decl_buffer(shape, buffer.dtype, buffer.name)


def _simplified(analyzer: Analyzer, value: Any) -> Any:
    """With the indices of its loads as short as can be."""

    def load(one: ir.TensorLoad) -> Any:
        return tirx.BufferLoad(one.source, [analyzer.simplify(index) for index in one.indices])

    return tvm_ffi.structural_map(value, (ir.TensorLoad, load))


def _loads_of(node: Any, buffer: Any) -> bool:
    return any(load.source.same_as(buffer) for load in loads(node))


def _stores_all(block: Any, out: Any) -> bool:
    """Whether a block stores each element of `out` where its axes say."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(out):
        return False
    return is_same(list(store.indices), [iv.var for iv in block.iter_vars])


def _longer_axis(param: Any, out: Any) -> int | None:
    """The only axis along which the two differ, where `out` is longer."""
    axes = _other_sizes(param, out)
    return axes[0] if axes and len(axes) == 1 and int(out.shape[axes[0]]) > int(param.shape[axes[0]]) else None


def _other_sizes(param: Any, out: Any) -> list[int] | None:
    """The axes along which two buffers differ; None where they have nothing in common."""
    if len(param.shape) != len(out.shape) or str(param.dtype) != str(out.dtype):
        return None
    return [axis for axis, (a, b) in enumerate(zip(param.shape, out.shape, strict=True)) if int(a) != int(b)]


def _is_at_least(condition: Any, var: Any, bound: int) -> bool:
    """Whether it says `var >= bound`."""
    if isinstance(condition, tirx.LE):
        return condition.b.same_as(var) and number(condition.a) == bound
    return isinstance(condition, tirx.GE) and condition.a.same_as(var) and number(condition.b) == bound


def _is_below(condition: Any, var: Any, bound: int) -> bool:
    """Whether it says `var < bound`."""
    if isinstance(condition, tirx.LT):
        return condition.a.same_as(var) and number(condition.b) == bound
    return isinstance(condition, tirx.GT) and condition.b.same_as(var) and number(condition.a) == bound
