"""Kernels of whole tiles of rows that touch none past the last, so that a kernel may read what the caller of a model
gave, in whose memory nothing is behind the last row, and no copy is made.

Where a loop goes through the rows of a tile, rows past the last are the last one:

    for t in range(tiles): for i in range(12): y[12 t + i] = ...     ->     y[min(12 t + i, rows - 1)] = ...

Where they are written out, each of them would need an address of its own. There the last tile begins earlier, and
overlaps another; what two tiles have in common they compute alike. Fewer rows than a tile has it cannot compute:

    for t in range(tiles): y[12 t] = ...; y[12 t + 1] = ...     ->     y[12 t + (back if t is the last, else 0)] = ...
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.core.dims import Dim
from subtune.core.kernel import Kernel, NotApplicable
from subtune.core.variants import GREATEST
from subtune.dynamic.workload import DynamicWorkload
from subtune.tir.substitute import substitute
from subtune.tir.walk import found


def overlapping(workload: DynamicWorkload, kernel: Kernel) -> Kernel | NotApplicable:
    """A kernel in numbers of tiles -> one in the rows themselves."""
    if set(kernel.granules) == {1}:
        return kernel
    if kernel.knows_extents or len(kernel.granules) != 1:
        return NotApplicable("its tiles are not alike")
    pitches = _pitches(workload)
    if isinstance(pitches, NotApplicable):
        return pitches
    outputs = len(workload.shapes) - workload.num_outputs
    reason = ""
    for kind, least in ((_LastRow, 1), (_LastTile, kernel.granules[0])):
        within = kind(kernel.func, kernel.granules[0], pitches, outputs)
        func = within.func()
        if not within.reason:
            return replace(kernel, func=func, granules=(1,), iterations=0.0, least=least)
        reason = within.reason
    return NotApplicable(reason)


def _pitches(workload: DynamicWorkload) -> dict[int, int] | NotApplicable:
    """Elements of a row of each argument that has as many as there are rows, by its place."""
    (rows,) = workload.extents
    found = {}
    for place, shape in enumerate(workload.shapes):
        varying = [i for i, dim in enumerate(shape) if dim.constant is None]
        if not varying:
            continue
        (first, *others) = varying
        if others or shape[first] != rows or any(dim != Dim.number(1) for dim in shape[:first]):
            return NotApplicable("rows are not the outermost of an argument")
        found[place] = prod(int(dim.constant or 0) for dim in shape[first + 1 :])
    return found


@dataclass(frozen=True)
class _Index:
    """A flat index: what its terms are multiplied by, and a constant."""

    terms: Sequence[tuple[Any, int]]
    constant: int


class _Within(ABC):
    """Rewrites one kernel: its first parameter is the number of tiles, of `granule` rows each.

    Args:
        pitches: elements of a row, by the place of an argument.
        outputs: the place of the first.

    Attributes:
        reason: why the kernel cannot be rewritten so, if it cannot. No error goes through TVM as the one that it was.
    """

    def __init__(self, func: PrimFunc, granule: int, pitches: Mapping[int, int], outputs: int) -> None:
        self._granule, self.reason = granule, ""
        self._tiles, *arguments = func.params
        self._old = func
        self._rows, size = tirx.Var("extent_rows", "int64"), tirx.const(granule, "int64")
        self._count = tirx.floordiv(self._rows + tirx.const(granule - 1, "int64"), size)
        self._bound = {bind.var: bind.value for bind in found(func.body, tirx.Bind)}
        self._pitch: dict[Any, int] = {}
        self._written: set[Any] = set()
        for place, pitch in pitches.items():
            names = [arguments[place], *self._names_of(arguments[place])]
            self._pitch |= dict.fromkeys(names, pitch)
            self._written |= set(names) if place >= outputs else set()

    def _names_of(self, argument: Any) -> list[Any]:
        """Buffers that are declared over the data of an argument."""
        declared = found(self._old.body, tirx.DeclBuffer)
        return [one.buffer for one in declared if any(argument.same_as(arg) for arg in one.data.args)]

    def func(self) -> PrimFunc:
        body = tvm_ffi.structural_map(self._old.body, [(tirx.BufferStore, self._stored), (ir.TensorLoad, self._loaded)])
        (tiles,) = self._old.attrs[GREATEST]
        # no variable is bound in front of parallel loops: these are joined where there is nothing else
        whole = substitute(body, {self._tiles: self._count})
        made = PrimFunc([self._rows, *self._old.params[1:]], whole, self._old.ret_type, self._old.attrs)
        return made.with_attr(GREATEST, [int(tiles) * self._granule])

    def _stored(self, store: Any) -> Any:
        if store.buffer not in self._pitch:
            return store
        return tirx.BufferStore(store.buffer, store.value, [self._moved(store.buffer, store.indices)])

    def _loaded(self, load: Any) -> Any:
        if load.source in self._written:
            self.reason = "it adds to what it has written"
        if load.source not in self._pitch:
            return load
        return tirx.BufferLoad(load.source, [self._moved(load.source, load.indices)])

    def _moved(self, buffer: Any, indices: Sequence[Any]) -> Any:
        """The index of a row that there is."""
        if len(indices) != 1:
            self.reason = "its indices are not flat"
        index, *_ = indices
        if isinstance(index, tirx.Ramp):
            return tirx.Ramp(self._moved(buffer, [index.base]), index.stride, index.lanes)
        pitch = self._pitch[buffer]
        linear = self._linear(index)
        if any(factor < 0 or (factor > pitch and factor % pitch) for _, factor in linear.terms):
            self.reason = "its rows are not told from its columns"
        rows = [(term, factor // pitch) for term, factor in linear.terms if factor % pitch == 0]
        # in 64 bits it joins the buffer's address; in 32 it would have to be added to every index
        return index.astype("int64") + self._back(rows, linear.constant // pitch) * tirx.const(pitch, "int64")

    @abstractmethod
    def _back(self, rows: Sequence[tuple[Any, int]], constant: int) -> Any:
        """By how many rows an index is moved, from the terms of which its row is the sum."""

    def _linear(self, expr: Any) -> _Index:
        """Its terms, those of bound variables among them; what is no sum and no multiple is a term."""
        if isinstance(expr, tirx.IntImm):
            return _Index((), int(expr))
        if isinstance(expr, ir.Var) and expr in self._bound:
            return self._linear(self._bound[expr])
        if isinstance(expr, tirx.Cast):
            return self._linear(expr.value)
        if isinstance(expr, tirx.Add | tirx.Sub):
            a, b = self._linear(expr.a), self._linear(expr.b)
            sign = 1 if isinstance(expr, tirx.Add) else -1
            return _Index((*a.terms, *((term, sign * of) for term, of in b.terms)), a.constant + sign * b.constant)
        if isinstance(expr, tirx.Mul):
            a, b = self._linear(expr.a), self._linear(expr.b)
            for one, other in ((a, b), (b, a)):
                if not one.terms:
                    factor = one.constant
                    return _Index(tuple((term, of * factor) for term, of in other.terms), other.constant * factor)
        return _Index(((expr, 1),), 0)


class _LastRow(_Within):
    """Rows past the last are the last one."""

    def __init__(self, func: PrimFunc, granule: int, pitches: Mapping[int, int], outputs: int) -> None:
        super().__init__(func, granule, pitches, outputs)
        loops = found(func.body, tirx.For)
        self._loops = {loop.loop_var for loop in loops if loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL)}

    def _back(self, rows: Sequence[tuple[Any, int]], constant: int) -> Any:
        if constant or any(term not in self._loops for term, _ in rows):
            self.reason = "its rows are written out"
        row = _sum(rows).astype("int64")
        return tirx.min(row, self._rows - tirx.const(1, "int64")) - row


class _LastTile(_Within):
    """The last tile begins as many rows earlier as it is not full."""

    def _back(self, rows: Sequence[tuple[Any, int]], constant: int) -> Any:
        size, zero = tirx.const(self._granule, "int64"), tirx.const(0, "int64")
        # what does not change within a tile is told once: of an index the row, or the first one of its tile
        of_tiles = [one for one in rows if one[1] % self._granule == 0]
        row = _sum(of_tiles or rows, constant // self._granule * self._granule if of_tiles else constant)
        first = ((self._count - tirx.const(1, "int64")) * size).astype("int32")
        return tirx.Select(row >= first, self._rows - self._count * size, zero)


def _sum(terms: Sequence[tuple[Any, int]], constant: int = 0) -> Any:
    total: Any = tirx.const(constant, "int32")
    for term, factor in terms:
        total = total + term.astype("int32") * tirx.const(factor, "int32")
    return total
