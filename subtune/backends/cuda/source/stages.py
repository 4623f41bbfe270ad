"""What the blocks of a kernel along lines compute, and where: the lines they share, their domains, their combiners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from subtune.backends.cuda.source.axes import Axes, Run
from subtune.backends.cuda.source.emit import const
from subtune.backends.cuda.source.lanes import Unsupported, decoded
from subtune.tir.blocks import is_reduction
from subtune.tir.expressions import is_load_of

_COMBINERS = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min)


@dataclass(frozen=True, slots=True)
class Lines:
    """The array whose lines are reduced, in elements."""

    outer: int
    length: int
    columns: int = 1


def lines_of(reductions: Sequence[Any], columns: int) -> Lines:
    """The lines that the reductions (sblocks) share; `columns` is known from the anchor."""
    shapes = {(size_of(block, tirx.IterVar.DataPar), size_of(block, tirx.IterVar.CommReduce)) for block in reductions}
    if len(shapes) != 1:
        raise Unsupported("the reductions do not share their lines")
    ((kept, length),) = shapes
    return Lines(kept // columns, length, columns)


def domain(block: Any, lines: Lines) -> str:
    """What the block computes: `reduce`, `full` or `kept`."""
    kept, reduced = size_of(block, tirx.IterVar.DataPar), size_of(block, tirx.IterVar.CommReduce)
    if is_reduction(block):
        if (kept, reduced) == (lines.outer * lines.columns, lines.length):
            return "reduce"
    elif kept == lines.outer * lines.columns:
        return "kept"
    elif kept == lines.outer * lines.columns * lines.length:
        return "full"
    raise Unsupported(f"block {block.name_hint} has neither a value per line nor one per element")


def axes_at(axes: Sequence[Any], parts: list[tuple[Any, int]], analyzer: Any) -> Axes:
    """The axes' values at the element whose number is that of the parts (number, size) in their order."""
    if not axes:
        return Axes({})
    indices, runs = _taken_apart(parts, [int(iv.dom.extent) for iv in axes], analyzer)
    by_variable = [
        Run(tuple((axes[axis].var, before, stride) for axis, before, stride in of_axes), number)
        for number, of_axes in runs
    ]
    return Axes({iv.var: index for iv, index in zip(axes, indices, strict=True)}, tuple(by_variable))


def indices_at(parts: list[tuple[Any, int]], shape: list[int], analyzer: Any) -> list[Any]:
    """The indices of an element of `shape` whose number is that of the parts (number, size) in their order.

    Each part is decoded by itself where the axes fall apart as the parts do, or an axis does (channels into groups, and
    those of a group): such indices simplify best.
    """
    return _taken_apart(parts, shape, analyzer)[0]


_OfAxes = list[tuple[int, Any, int]]
"""Axes that a number runs over: each one's position, what is before the number's own part, and its stride."""


def _taken_apart(
    parts: list[tuple[Any, int]], shape: list[int], analyzer: Any
) -> tuple[list[Any], list[tuple[Any, _OfAxes]]]:
    """The indices, and the numbers that run over several axes, with these."""
    found: list[Any] = [const(0)] * len(shape)
    rest = [(axis, extent) for axis, extent in enumerate(shape) if extent > 1]
    runs: list[tuple[Any, _OfAxes]] = []
    for number, size in parts:
        taken: list[tuple[int, int, int]] = []  # axis, extent, and how far apart its elements are in the axis
        while size > 1 and rest:
            axis, extent = rest.pop(0)
            own = extent if size % extent == 0 else size
            if extent % own:
                return _decoded(parts, shape, analyzer), []
            taken.append((axis, own, extent // own))
            if own < extent:
                rest.insert(0, (axis, extent // own))
            size //= own
        if size > 1:
            return _decoded(parts, shape, analyzer), []
        extents = [extent for _, extent, _ in taken]
        if len(taken) > 1 and all(apart == 1 for _, _, apart in taken):
            of_axes = [(axis, found[axis], prod(extents[i + 1 :])) for i, (axis, _, _) in enumerate(taken)]
            runs.append((number, of_axes))
        for (axis, _, apart), index in zip(taken, decoded(number, extents, analyzer), strict=True):
            found[axis] = analyzer.simplify(found[axis] + index * apart)
    return (found, runs) if not rest else (_decoded(parts, shape, analyzer), [])


def _decoded(parts: list[tuple[Any, int]], shape: list[int], analyzer: Any) -> list[Any]:
    """The same for any shape."""
    number: Any = const(0)
    for part, size in parts:
        number = number * size + part
    return decoded(number, shape, analyzer)


def size_of(block: Any, kind: int) -> int:
    return prod(int(iv.dom.extent) for iv in block.iter_vars if int(iv.iter_type) == kind)


def combination(block: Any) -> tuple[type, Any, Any]:
    """The combiner of `C = combiner(C, element)`, the element, and what C begins with."""
    value = block.body.value
    if not isinstance(value, _COMBINERS) or not is_load_of(value.a, block.body.buffer) or block.init is None:
        raise Unsupported("a reduction that is no sum, product, maximum or minimum")
    return type(value), value.b, block.init.value
