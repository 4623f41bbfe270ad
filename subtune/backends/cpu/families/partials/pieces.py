"""What both ways to write a reduction share: its value at a place, and the ranges that threads work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx

from subtune.patterns.runs import Run
from subtune.patterns.strided import Strided
from subtune.tir.statements import integer, parallel, serial, store
from subtune.tir.substitute import substitute

Places = Mapping[Run, Any]
"""A position on each of some runs."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Into how many pieces the outermost reduced run is divided; 1: every result is one thread's."""

    pieces: int
    is_serial: bool = False

    def each(self, extent: int, body: Callable[[Any], Any]) -> Any:
        """`body` for all grains, by all threads."""
        return (serial if self.is_serial else parallel)(extent, body)

    def range_of(self, piece: Any, extent: int) -> tuple[Any, Any]:
        """First and last plus one of `extent` things that are a piece's."""
        if self.pieces == 1:
            return integer(0), integer(extent)
        begin, end = (tirx.floordiv(p * integer(extent), integer(self.pieces)) for p in (piece, piece + integer(1)))
        return begin, end


def value_at(found: Strided, places: Places) -> Any:
    """What is reduced, there."""
    return substitute(found.value, _axes(found, places))


def put(found: Strided, total: Any, places: Places) -> Any:
    """The statement that stores a result; `places` on the kept runs."""
    axes = _axes(found, places)
    return store(found.block.body.buffer, total, *(substitute(index, axes) for index in found.block.body.indices))


def _axes(found: Strided, places: Places) -> dict[Any, Any]:
    values = {iv.var: integer(0) for iv in found.block.iter_vars}
    for run, index in places.items():
        values |= run.at(index)
    return values


def unfolded(runs: Sequence[Run], index: Any) -> dict[Run, Any]:
    """The positions that `index` counts together, that on the last run fastest."""
    places: dict[Run, Any] = {}
    for number, run in reversed(list(enumerate(runs))):
        places[run] = tirx.floormod(index, integer(run.extent)) if number else index
        index = tirx.floordiv(index, integer(run.extent))
    return places


def count(runs: Sequence[Run]) -> int:
    return prod(run.extent for run in runs)
