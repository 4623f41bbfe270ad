"""Planes of an image put side by side: elements whose result has a few channels last, of operands that lie along rows.

    out[n, h, w, c] = f(x[n, c, h, w])

Paddings at the ends of a row are found and set apart. Names are never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.stages import inlined
from subtune.tir.blocks import extents_of
from subtune.tir.expressions import conjuncts, is_same, loads, variables
from subtune.tir.substitute import substitute

MAX_CHANNELS = 4
_CONDITIONAL = frozenset({"prim.if_then_else", "tirx.if_then_else"})


@dataclass(frozen=True, slots=True)
class SideBySide:
    """`extents` are those of the result, of which the last two are pixels of a row and their channels.

    `axes` are the block's variables for these. Every operand is read along the pixels, or not at all. From pixel
    `begin` on and before `end` all holds that is asked of a pixel's place alone; `value` is the result there, without
    such questions, and `anywhere` the one of all pixels.
    """

    extents: tuple[int, ...]
    axes: tuple[Any, ...]
    begin: int
    end: int
    value: Any
    anywhere: Any

    @property
    def width(self) -> int:
        return self.extents[-2]

    @property
    def channels(self) -> int:
        return self.extents[-1]

    @property
    def of_planes(self) -> tuple[Any, ...]:
        """What is read along the pixels of a row."""
        w = self.axes[-2]
        return tuple(one for one in loads(self.value) if one.indices and w in variables(one.indices[-1]))


def has_few_channels(workload: Workload) -> bool:
    """Whether a workload has one result, whose last axis is as short as channels of an image; a look at its shape."""
    shape = workload.args[-1].shape
    return workload.num_outputs == 1 and len(shape) > 2 and shape[-1] in range(2, MAX_CHANNELS + 1)


@lru_cache(maxsize=4)
def planes_of(workload: Workload) -> tuple[PrimFunc, Any, SideBySide] | NotApplicable:
    """An elementwise workload of one result, its stages inlined: the function, its block, and this as planes."""
    found = inlined(workload)
    if isinstance(found, NotApplicable):
        return found
    sch, stages = found
    if stages.anchors or stages.producers or len(stages.outputs) != 1:
        return NotApplicable("not an elementwise workload of one result")
    block = sch.get(stages.outputs[0])
    planes = side_by_side(block)
    if isinstance(planes, NotApplicable):
        return planes
    return (sch.mod["main"], block, planes) if planes.of_planes else NotApplicable("no planes are read")


def side_by_side(block: Any) -> SideBySide | NotApplicable:
    """An elementwise block, its producers inlined, as planes side by side, or why it is none."""
    store, axes, extents = block.body, tuple(iv.var for iv in block.iter_vars), extents_of(block)
    if extents is None or not isinstance(store, tirx.BufferStore) or len(axes) != len(store.indices):
        return NotApplicable("the result is stored otherwise")
    if not all(is_same(index, axis) for index, axis in zip(store.indices, axes, strict=True)):
        return NotApplicable("the result is stored in another order")
    if len(axes) < 2 or not 2 <= extents[-1] <= MAX_CHANNELS:
        return NotApplicable("not a few channels side by side")
    *_, w, _ = axes
    if not all(_runs_along(load.indices, w) for load in loads(store.value) if load.indices):
        return NotApplicable("an operand does not lie along the pixels of a row")
    begin, end = _inside(store.value, w, extents[-2])
    value = tvm_ffi.structural_map(store.value, (ir.Call, lambda call: _without(call, w)))
    return SideBySide(tuple(extents), axes, begin, end, value, store.value)


def _runs_along(indices: Any, w: Any) -> bool:
    """Whether the innermost index, and no other, is `w` plus what does not depend on it; or none depends on it."""
    *others, last = indices
    if any(w in variables(index) for index in others):
        return False
    step = Analyzer().simplify(substitute(last, {w: w + tirx.const(1, w.ty.dtype)}) - last)
    return isinstance(step, tirx.IntImm) and int(step) in (0, 1)


def _inside(value: Any, w: Any, width: int) -> tuple[int, int]:
    """The positions along `w` between which every condition on it alone holds."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (ir.Call, lambda call: found.append(call) if _is_choice(call) else None))
    asked = [one for call in found for one in conjuncts(call.args[0]) if set(variables(one)) == {w}]
    analyzer = Analyzer()
    held = [
        all(_is_true(analyzer.simplify(substitute(one, {w: tirx.const(at, w.ty.dtype)}))) for one in asked)
        for at in range(width)
    ]
    begin = held.index(True) if True in held else 0
    end = next((at for at in range(begin, width) if not held[at]), width)
    return (begin, end) if True in held else (0, 0)


def _is_choice(call: Any) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name in _CONDITIONAL


def _is_true(condition: Any) -> bool:
    return isinstance(condition, tirx.IntImm) and bool(int(condition))


def _without(call: Any, w: Any) -> Any:
    """A choice without the conditions on `w` alone, which hold."""
    if not _is_choice(call):
        return call
    asked = [one for one in conjuncts(call.args[0]) if set(variables(one)) != {w}]
    return tirx.if_then_else(tirx.all(*asked), *call.args[1:]) if asked else call.args[1]
