"""Parts of a result that are results of their own: what is stored of a row is stored once more, where it belongs there.

A vector is in a copy as a whole or not at all, and lies there as it does in its row: widened to float32 perhaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.store import Store
from subtune.core.kernel import NotApplicable
from subtune.core.workload import dtype_bits
from subtune.patterns.product_copies import ProductWithCopies, Run, Section

_STORED_BYTES = 16  # at once


@dataclass(frozen=True, slots=True)
class StoredCopy:
    """`section` of a matrix of `rows` and `columns`, which is stored to `buffer` by `vector` elements of a row."""

    section: Section
    rows: int
    columns: int
    vector: int
    buffer: Any

    def store(self, values: Any, row: Any, column: Any) -> None:
        """The `values` of a row from `column` on, if they are the copy's."""
        inside = [*bounds(self.section.rows, row, self.rows), *bounds(self.section.columns, column, self.columns)]
        if not inside:
            self._store(values, row, column)
            return
        with T.If(tirx.all(*inside)), T.Then():
            self._store(values, row, column)

    def _store(self, values: Any, row: Any, column: Any) -> None:
        section = self.section
        at = indices(section.rows, row) | indices(section.columns, column)
        *outer, last = (at.get(dim, tirx.const(0, "int32")) for dim in range(len(section.shape)))
        last = last // self.vector * self.vector  # so that codegen sees that it is aligned
        width = min(self.vector, _STORED_BYTES * 8 // dtype_bits(section.dtype))
        piece = T.alloc_local((width,), section.dtype)
        for first in range(0, self.vector, width):
            with T.vectorized(width) as v:
                T.buffer_store(piece, values[first + v].astype(section.dtype), [v])
            there = [*outer, last + first]
            if width * dtype_bits(section.dtype) == _STORED_BYTES * 8:
                # nobody here reads it again: L2 is for the result itself
                words = piece.view("uint32")
                to = tirx.address_of(tirx.BufferLoad(self.buffer, there))
                T.evaluate(T.ptx["st.global.cs.v4.b32"](to, *[words[i] for i in range(4)]))
            else:
                with T.vectorized(width) as v:
                    T.buffer_store(self.buffer, piece[v], [*outer, last + first + v])


def bounds(run: Run, index: Any, extent: int) -> list[Any]:
    """What says that `index`, one of `extent`, is in the run."""
    end = run.first + run.count
    return [*([index >= run.first] if run.first else []), *([index < end] if end < extent else [])]


def indices(run: Run, index: Any) -> dict[int, Any]:
    """The copy's index into each dim that walks the run."""
    within = index - run.first if run.first else index
    return {
        axis.dim: within // axis.step if i == 0 else within // axis.step % axis.extent
        for i, axis in enumerate(run.walk)
    }


def product_alone(problem: Problem[CUDAModel]) -> Problem[CUDAModel]:
    """The product without the copies of its result, where `problem` has any."""
    pattern = problem.pattern
    return replace(problem, workload=pattern.front) if isinstance(pattern, ProductWithCopies) else problem


def copied_bytes(problem: Problem[CUDAModel]) -> int:
    """Of the copies."""
    return problem.workload.nbytes - product_alone(problem).workload.nbytes


def with_copies(
    problem: Problem[CUDAModel], store: Store, params: Sequence[Any]
) -> tuple[tuple[StoredCopy, ...], tuple[Any, ...]] | NotApplicable:
    """The problem's copies as `store` stores them, and the kernel's parameters, of which the product's are `params`."""
    pattern = problem.pattern
    if not isinstance(pattern, ProductWithCopies):
        return (), tuple(params)
    shape = [int(d) for d in store.epilogue.out.shape]
    found = []
    for section in pattern.sections:
        if why := _obstacle(section, store.vector):
            return NotApplicable(why)
        name = str(problem.workload.func.params[section.param].name)
        buffer = T.buffer(section.shape, section.dtype, align=16, buffer_name=name)
        found.append(StoredCopy(section, prod(shape[:-1]), shape[-1], store.vector, buffer))
    own = {copy.section.param: copy.buffer for copy in found}
    rest = iter(params)
    every = tuple(own[i] if i in own else next(rest) for i in range(len(problem.workload.args)))
    return tuple(found), every


def _obstacle(section: Section, vector: int) -> str:
    """Why a row's vectors are none of the copy's; "" where they are."""
    run = section.columns
    if not run.walk or run.walk[-1].dim != len(section.shape) - 1:
        return "a copy whose rows have other elements side by side"
    if run.first % vector or run.walk[-1].extent % vector:
        return f"a copy of {run.walk[-1].extent} columns each from {run.first} on, which vectors of {vector} straddle"
    return ""
