"""What is stored for an element of a contraction, as an expression over its sum and its axes, read from the TIR.

    out[indices] = value(sum, axes)        bias, residual, scale, activation, casts, as the blocks say

A kernel that is no schedule of the workload rebuilds these expressions where it has the sum in registers: over its own
indices, in int32, and in float32 where the model computes in 16 bits (a value is rounded where it is stored, not
before). `split` says what may be computed before elements change threads: all that depends on the column alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.sym import Analyzer

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import FLOAT8
from subtune.core.workload import dtype_bits
from subtune.patterns.axes import Role
from subtune.patterns.contraction import Contraction
from subtune.patterns.stages import Stages
from subtune.tir.expressions import is_same, loads, replace_loads, variables
from subtune.tir.rebuild import BINARY, ForeignError, Rebuild

STORED = ("float32", "float16", "bfloat16", "int8", "uint8", "int32", FLOAT8)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """`out[indices] = value`: over `acc`, which stands for the sum, and `axes`, the anchor's own variables."""

    acc: Any
    axes: tuple[Any, ...]
    value: Any
    out: Any
    indices: tuple[Any, ...]

    @property
    def dtype(self) -> str:
        return str(self.out.dtype)

    def with_numbers(
        self, buffers: Sequence[Any], info: Contraction
    ) -> tuple[Epilogue, tuple[Any, ...]] | NotApplicable:
        """The same with a variable in place of what it loads from each of `buffers`, and these variables.

        Args:
            info: the anchor, by whose rows the numbers are.
        """
        analyzer = Analyzer()
        for axis in info.axes:
            analyzer.bind(self.axes[axis.index], ir.Range(0, axis.extent))
        row: Any = tirx.const(0, "int64")
        for axis in info.of_role(Role.M):
            row = row * axis.extent + self.axes[axis.index]
        value, found = self.value, []
        for buffer in buffers:
            own = [load for load in loads(value) if load.source.same_as(buffer)]
            if not all(analyzer.can_prove_equal(load.indices[0], row) for load in own):
                return NotApplicable("a number of another row")
            found.append(tirx.Var(buffer.name, "float32"))
            value = replace_loads(value, buffer, found[-1])
        return replace(self, value=value), tuple(found)


def epilogue_of(sch: Schedule, stages: Stages, info: Contraction) -> Epilogue | NotApplicable:
    """The epilogue of an inlined contraction, or why it has none of this form."""
    anchor = sch.get(stages.anchors[0])
    axes = tuple(iv.var for iv in anchor.iter_vars)
    store = anchor.body
    acc = tirx.Var("acc", info.acc_dtype)
    if not stages.outputs:
        found = Epilogue(acc, axes, acc, store.buffer, tuple(store.indices))
    elif len(stages.outputs) > 1:
        return NotApplicable("several outputs")
    else:
        block = sch.get(stages.outputs[0])
        if not isinstance(block.body, tirx.BufferStore):
            return NotApplicable("the epilogue stores more than one value")
        moved = _axes_of_output(block, store, {iv.var: int(iv.dom.extent) for iv in anchor.iter_vars})
        if isinstance(moved, NotApplicable):
            return moved
        value = _replace(block.body.value, lambda load: acc if load.source.same_as(store.buffer) else load, moved)
        indices = tuple(_replace(i, lambda load: load, moved) for i in block.body.indices)
        found = Epilogue(acc, axes, value, block.body.buffer, indices)
    if found.dtype not in STORED or info.acc_dtype not in STORED:
        return NotApplicable(f"sums of {info.acc_dtype} stored as {found.dtype}")
    if not all(any(load.source.same_as(p) for p in sch.mod["main"].params) for load in loads(found.value)):
        return NotApplicable("the epilogue reads what another block makes")
    try:
        Rebuild({var: tirx.Var(var.name, "int32") for var in axes}, {acc: acc})(found.value)
    except ForeignError as e:
        return NotApplicable(str(e))
    return found


def _axes_of_output(block: Any, store: tirx.BufferStore, extents: Mapping[Any, int]) -> dict[Any, Any] | NotApplicable:
    """The output block's variables as expressions over the anchor's axes."""
    read = [load for load in loads(block.body.value) if load.source.same_as(store.buffer)]
    if not read:
        return NotApplicable("the output does not read the anchor")
    at = tuple(read[0].indices)
    if any(not is_same(i, j) for load in read[1:] for i, j in zip(load.indices, at, strict=True)):
        return NotApplicable("the output reads the anchor at several places")
    spatial = {iv.var: int(iv.dom.extent) for iv in block.iter_vars}
    moved = {var: axis for var, axis in zip(at, store.indices, strict=True) if isinstance(var, ir.Var)}
    if all(isinstance(i, ir.Var | tirx.IntImm) for i in at) and len(moved) == sum(isinstance(i, ir.Var) for i in at):
        if all(spatial[var] == extents[axis] for var, axis in moved.items()):
            rest = {var: tirx.const(0, var.ty.dtype) for var in spatial if var not in moved and spatial[var] == 1}
            if len(rest) + len(moved) == len(spatial):
                return {**moved, **rest}
        return NotApplicable("the output is larger or smaller than the anchor")
    live = [(i, axis) for i, axis in zip(at, store.indices, strict=True) if extents[axis] > 1]
    if prod(spatial.values()) != prod(extents[axis] for _, axis in live):
        return NotApplicable("the output is larger or smaller than the anchor")
    try:
        shape = [tirx.const(d, "int64") for d in spatial.values()]
        inverse = tirx.IndexMap(list(spatial), [i for i, _ in live], None).inverse(shape)
    except (RuntimeError, ValueError) as e:
        return NotApplicable(f"the output is no rearrangement of the anchor: {str(e).splitlines()[-1]}")
    return dict(zip(spatial, inverse.map_indices([axis for _, axis in live]), strict=True))


def _replace(expr: Any, load: Callable[[Any], Any], env: Mapping[Any, Any]) -> Any:
    placed = tvm_ffi.structural_map(expr, (ir.Var, lambda var: env.get(var, var)))
    return tvm_ffi.structural_map(placed, (ir.TensorLoad, load))


def split(value: Any, acc: Any, rows: set[Any]) -> Any:
    """The largest part of `value` through which alone it depends on `acc`, and that none of `rows` occurs in."""
    if not variables(value) & rows:
        return value
    parts = [split(child, acc, rows) for child in _children(value) if acc in variables(child)]
    return parts[0] if parts and all(is_same(parts[0], part) for part in parts[1:]) else acc


def narrowest(value: Any, acc: Any) -> Any:
    """The part of `value` through which alone it depends on `acc` that has the fewest bits; the largest such part."""
    found, part = value, value
    while part is not acc:
        parts = [child for child in _children(part) if acc in variables(child)]
        if not parts or not all(is_same(parts[0], other) for other in parts[1:]):
            break
        part = parts[0]
        if dtype_bits(str(part.ty.dtype)) < dtype_bits(str(found.ty.dtype)):
            found = part
    return found


def loads_beside(value: Any, part: Any) -> list[Any]:
    """The loads in `value` that are not in `part`."""
    if type(value) is type(part) and is_same(value, part):
        return []
    if isinstance(value, ir.TensorLoad):
        return [value]
    return [load for child in _children(value) for load in loads_beside(child, part)]


def _children(node: Any) -> tuple[Any, ...]:
    if isinstance(node, tirx.Cast):
        return (node.value,)
    if isinstance(node, tirx.Not):
        return (node.a,)
    if isinstance(node, tirx.Select):
        return node.condition, node.true_value, node.false_value
    if isinstance(node, ir.Call):
        return tuple(node.args)
    return (node.a, node.b) if type(node) in BINARY else ()
