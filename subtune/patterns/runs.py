"""Axes in the order of memory, those that every access reads as if they were one joined to runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer, detect_linear_equation

from subtune.tir.expressions import variables


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Adjacent axes of one kind, the last one fastest."""

    is_reduced: bool
    axes: tuple[Any, ...]
    extent: int

    @classmethod
    def of(cls, axes: Sequence[Any]) -> Run:
        return cls(bool(axes) and is_reduced(axes[0]), tuple(axes), prod(int(iv.dom.extent) for iv in axes))

    def at(self, index: Any) -> dict[Any, Any]:
        """The axes' values at a position of the run."""
        values: dict[Any, Any] = {}
        for position, iv in reversed(list(enumerate(self.axes))):
            extent = tirx.const(int(iv.dom.extent), "int64")
            values[iv.var] = tirx.floormod(index, extent) if position else index
            index = tirx.floordiv(index, extent)
        return values


def is_reduced(iv: Any) -> bool:
    return int(iv.iter_type) == tirx.IterVar.CommReduce


def strides_of(buffer: Any, indices: Iterable[Any], every: Sequence[Any], axes: Sequence[Any]) -> list[int] | None:
    """Elements from one value of each of `axes` to the next; None where the place is not linear in them.

    Args:
        every: all axes that occur.
    """
    flat = tirx.const(0, "int64")
    for index, extent in zip(indices, buffer.shape, strict=True):
        flat = flat * extent + index
    used = variables(flat)
    if not any(iv.var in used for iv in axes):
        return [0] * len(axes)
    analyzer = Analyzer()
    for iv in every:
        analyzer.bind(iv.var, iv.dom)
    found = detect_linear_equation(analyzer.simplify(flat), [iv.var for iv in axes])
    if not found or not all(isinstance(coefficient, tirx.IntImm) for coefficient in found[:-1]):
        return None
    return [int(coefficient) for coefficient in found[:-1]]


def joins(outer: int, inner: int, axes: Sequence[Any], strides: Sequence[Sequence[int]]) -> bool:
    """Whether two of `axes` are one for every access."""
    extent = int(axes[inner].dom.extent)
    return all(one[outer] == one[inner] * extent for one in strides)


def joined(order: Iterable[int], axes: Sequence[Any], strides: Sequence[Sequence[int]]) -> list[list[int]]:
    """Positions of `axes`, in `order`, those of a run together."""
    runs: list[list[int]] = []
    for i in order:
        is_same = bool(runs) and is_reduced(axes[runs[-1][-1]]) == is_reduced(axes[i])
        if is_same and joins(runs[-1][-1], i, axes, strides):
            runs[-1].append(i)
        else:
            runs.append([i])
    return runs
