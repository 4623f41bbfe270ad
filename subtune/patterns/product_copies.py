"""A product whose result is also wanted in parts, as further results: keys and values, with their heads in front.

X[.., n]       the result of a contraction with its epilogue: `front`, a workload of its own
out[axes]  =   X[rows, columns]         every other result: a run of X's rows and columns, in another order; of halves
                                        perhaps as float32
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.copies import Copy, Walked, copy_of, walked
from subtune.patterns.reductions import Blocks


@dataclass(frozen=True, slots=True)
class Run:
    """`count` neighbouring rows or columns from `first` on, which the copy's dims `walk`, the widest steps first."""

    first: int
    count: int
    walk: tuple[Walked, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """Parameter number `param`, of `dtype` and `shape`: a copy of those rows and columns of the product's result."""

    param: int
    shape: tuple[int, ...]
    dtype: str
    rows: Run
    columns: Run

    def is_whole(self, elements: int) -> bool:
        """Whether it has all of so many elements in their order: then it is no part of them, and nothing is moved."""
        dims = [axis.dim for axis in (*self.rows.walk, *self.columns.walk)]
        return self.rows.count * self.columns.count == elements and dims == sorted(dims)


@dataclass(frozen=True, slots=True, eq=False)
class ProductWithCopies:
    """`front` makes the first result, and whatever else is no copy of it; `sections` are the copies."""

    front: Workload
    sections: tuple[Section, ...]


def product_with_copies(workload: Workload) -> ProductWithCopies | NotApplicable:
    """`workload` as a product and copies, at least one of which moves what it copies, or why it is none.

    What `front` computes is for those to find out who read it.
    """
    func, count = workload.func, workload.num_outputs
    blocks = Blocks.of(func) if count > 1 else NotApplicable("one output")
    if isinstance(blocks, NotApplicable):
        return blocks
    params = list(func.params)
    result, *others = params[-count:]
    behind = Blocks.of(blocks.after(func, result))
    if isinstance(behind, NotApplicable):
        return behind
    found = [(out, copy_of(behind, out)) for out in others]
    copies = [copy for _, copy in found if isinstance(copy, Copy) and copy.load.source.same_as(result)]
    sections = []
    for copy in copies:
        section = _section(copy, next(i for i, param in enumerate(params) if param.same_as(copy.out)))
        if isinstance(section, NotApplicable):
            return section
        sections.append(section)
    elements = prod(int(d) for d in result.shape)
    if all(section.is_whole(elements) for section in sections):
        return NotApplicable("no result is a part of the first, or in another order")
    kept = [param for param in params if not any(param.same_as(copy.out) for copy in copies)]
    made = frozenset().union(*(blocks.needed_for(param) for param in kept if param in blocks.made))
    front = Workload.of(blocks.part(func, made, kept), count - len(copies))
    return ProductWithCopies(front, tuple(sections))


def _section(copy: Copy, param: int) -> Section | NotApplicable:
    found = walked(copy)
    if found is None:
        return NotApplicable("a copy at indices that are no sums of its axes")
    begin, axes = found
    width = int(copy.load.source.shape[-1])
    row, column = divmod(begin, width)
    of_rows = _run(row, [Walked(a.dim, a.step // width, a.extent) for a in axes if a.step > 0 and a.step % width == 0])
    of_columns = _run(column, [a for a in axes if a.step <= 0 or a.step % width])
    if of_rows is None or of_columns is None or column + of_columns.count > width:
        return NotApplicable("a copy of rows or columns that are no neighbours")
    shape = tuple(int(d) for d in copy.out.shape)
    return Section(param, shape, str(copy.out.dtype), of_rows, of_columns)


def _run(first: int, axes: list[Walked]) -> Run | None:
    """The axes as one run from `first` on; None where they leave gaps, or overlap."""
    walk, count = sorted(axes, key=lambda axis: axis.step), 1
    for axis in walk:
        if axis.step != count:
            return None
        count *= axis.extent
    return Run(first, count, tuple(reversed(walk)))
