"""Windows that slide over the two innermost axes: pooling and convolution with channels first."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.sym.analyzer import Analyzer

from subtune.core.kernel import NotApplicable
from subtune.patterns.axes import Sliding, operand_of
from subtune.tir.blocks import extents_of
from subtune.tir.expressions import conjuncts, is_conditional, is_load_of, loads, variables
from subtune.tir.substitute import substitute

_READ = ("float32", "float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Planes:
    """C[..., y, x] = reduce over d, ky, kx of A[..., y * stride + ky * dilation, x * stride + kx * dilation].

    Attributes:
        shape: of the output; the last two are the plane.
        taps: extents of the window, (ky, kx).
        slides: how the window moves along either axis.
        window: what is read so, a buffer of TIR; everything else that the anchor reads does not depend on x.
        plane: its indices before the last two, of the anchor's axes.
        depth: so many planes of A make one of C: the channels of a convolution's group.
        deep: the anchor's axis that goes through them; -1 where there is one.
        shared: so many planes of C, neighbours along the axis before y, are made of the same ones of A.
    """

    shape: tuple[int, ...]
    taps: tuple[int, int]
    slides: tuple[Sliding, Sliding]
    window: Any
    plane: tuple[Any, ...]
    depth: int
    deep: int
    shared: int

    @property
    def groups(self) -> int:
        """Of planes of C that share those of A, along the axis before y."""
        return self.shape[-3] // self.shared

    @property
    def reach(self) -> tuple[int, int]:
        """Elements from the first that a window reads to the last, along either axis."""
        ky, kx = ((taps - 1) * slide.dilation + 1 for taps, slide in zip(self.taps, self.slides, strict=True))
        return ky, kx


@dataclass(frozen=True, slots=True)
class Border:
    """A padding: where (y, x) of the padded plane lies in `spans`, it is `inside`, elsewhere `value`.

    `inside` is what is read from `source`, or computed from it element by element (a cast).
    """

    axes: tuple[Any, ...]
    spans: tuple[tuple[int, int], tuple[int, int]]
    inside: Any
    source: Any
    value: Any


def planes(sch: Schedule, block_rv: Any) -> Planes | NotApplicable:
    """The anchor as windows over planes, or why it is none."""
    block = sch.get(block_rv)
    extents = extents_of(block)
    if extents is None or not isinstance(block.body, tirx.BufferStore) or block.init is None:
        return NotApplicable("not one reduction of static extents")
    store = block.body
    axes_of = {iv.var: i for i, iv in enumerate(block.iter_vars)}
    rank = len(store.indices)
    kept = [axes_of.get(index, -1) for index in store.indices]
    if rank < 3 or kept != list(range(rank)) or str(store.buffer.dtype) != "float32":
        return NotApplicable("the output is no float32 tensor of planes")
    long = [i for i in range(rank, len(extents)) if extents[i] > 1]
    found: list[Any] = []
    for load in loads(store.value):
        if is_load_of(load, store.buffer) or not any(store.indices[-1] in variables(i) for i in load.indices):
            continue
        operand = operand_of(sch.mod["main"], block, load, axes_of)
        if operand.dtype not in _READ or len(load.indices) != rank:
            return NotApplicable("what the window reads is no tensor of planes")
        if any(variables(index) & set(store.indices[-2:]) for index in load.indices[:-2]):
            return NotApplicable("a plane's index is more than where the plane lies")
        found.append((load, operand.windows[-2:]))
    if len(found) != 1 or any(slide is None for slide in found[0][1]):
        return NotApplicable("not one operand that a window slides over")
    load, (down, along) = found[0]
    deep = [i for i in long if i not in (down.tap, along.tap)]
    if (down.axis, along.axis) != (rank - 2, rank - 1) or len(deep) > 1:
        return NotApplicable("the window slides over other axes than the two innermost ones")
    taps, plane = (extents[down.tap], extents[along.tap]), tuple(load.indices[:-2])
    depth, axis = (extents[deep[0]], deep[0]) if deep else (1, -1)
    shared = _shared(plane, store.indices[-3], extents[rank - 3])
    return Planes(tuple(extents[:rank]), taps, (down, along), load.source, plane, depth, axis, shared)


def _shared(plane: tuple[Any, ...], axis: Any, extent: int) -> int:
    """Neighbours along `axis`, of `extent`, that have the same `plane`: what it is divided by wherever it occurs."""
    divisors: list[int] = [extent]

    def divided(expr: Any) -> Any:
        if expr.a.same_as(axis) and isinstance(expr.b, tirx.IntImm):
            divisors.append(int(expr.b))
            return tirx.const(0, "int64")
        return expr

    rest = tvm_ffi.structural_map(list(plane), (tirx.FloorDiv, divided))
    return 1 if axis in variables(list(rest)) else gcd(*divisors)


def border(block: Any) -> Border | NotApplicable:
    """A padding of the two innermost axes by a constant, read off its block."""
    body = block.body
    axes = tuple(iv.var for iv in block.iter_vars)
    value = body.value if isinstance(body, tirx.BufferStore) else None
    if not isinstance(value, ir.Call) or "if_then_else" not in str(value.op) or list(body.indices) != list(axes):
        return NotApplicable("the padding is no choice between an element and a constant")
    condition, inside, outside = value.args
    read = loads(inside)
    if not isinstance(outside, tirx.FloatImm) or len(read) != 1 or is_conditional(inside):
        return NotApplicable("the padding is no choice between an element and a constant")
    spans = {axis: [0, int(iv.dom.extent)] for axis, iv in zip(axes, block.iter_vars, strict=True)}
    for part in conjuncts(condition):
        if not isinstance(part, tirx.LT | tirx.LE):
            return NotApplicable("the padding asks for more than bounds")
        shift = 1 if isinstance(part, tirx.LT) else 0
        if part.b in spans and isinstance(part.a, tirx.IntImm):
            spans[part.b][0] = max(spans[part.b][0], int(part.a) + shift)
        elif part.a in spans and isinstance(part.b, tirx.IntImm):
            spans[part.a][1] = min(spans[part.a][1], int(part.b) + 1 - shift)
        else:
            return NotApplicable("the padding asks for more than bounds")
    whole = [spans[iv.var] == [0, int(iv.dom.extent)] for iv in block.iter_vars[:-2]]
    steps = [_is_shifted(index, axis) for index, axis in zip(read[0].indices, axes, strict=False)]
    if not all(whole) or not all(steps) or len(steps) != len(axes):
        return NotApplicable("more than the two innermost axes are padded, or they are turned")
    down, along = (spans[axis] for axis in axes[-2:])
    return Border(axes, ((down[0], down[1]), (along[0], along[1])), inside, read[0].source, outside)


def _is_shifted(index: Any, axis: Any) -> bool:
    """Whether `index` is the axis plus a constant."""
    rest = Analyzer().simplify(substitute(index, {axis: axis + tirx.const(1, "int64")}) - index)
    return isinstance(rest, tirx.IntImm) and int(rest) == 1 and variables(index) == {axis}
