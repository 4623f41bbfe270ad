"""A subgraph of a dynamic model: one workload for every instance of its extents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock

from subtune.core.dims import Dim, quotient
from subtune.core.domain import Domain
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.dynamic.fit import NO_STEPS, Fitter
from subtune.dynamic.template import Template, generalised
from subtune.passes.pad_attention import KEYS, ROWS

DIVISORS = (ROWS, KEYS)
"""Of extents, in the module: what is padded is padded to multiples of these."""


@dataclass(frozen=True)
class DynamicWorkload:
    """`extents` of what it computes, by their names `e0`, `e1`, …, are polynomials in the model's symbols.

    `extents` are as few as there can be: a dense layer of `batch*seq` rows has one.
    """

    template: Template
    num_outputs: int
    extents: tuple[Dim, ...]
    shapes: tuple[tuple[Dim, ...], ...]
    """Of the arguments, in the model's symbols."""
    greatest: tuple[int, ...] = ()
    """Extents of the largest instance, if there is one."""
    least: tuple[int, ...] = ()
    """Every extent's at the instance at which it is least and not 0, if there is one."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"e{i}" for i in range(len(self.extents)))

    def at(self, extents: Sequence[int]) -> Workload:
        """The static workload of one instance."""
        func = self.template.at(dict(zip(self.names, extents, strict=True)))
        return Workload.of(func, self.num_outputs)

    def extents_at(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(dim.at(symbols) for dim in self.extents)


def dynamic_workload(
    workloads: Sequence[Workload],
    points: Sequence[Mapping[str, int]],
    greatest: Mapping[str, int] | None = None,
    sums: Sequence[Dim] = (),
    steps: Mapping[str, int] = NO_STEPS,
    least: Mapping[str, int] | None = None,
) -> DynamicWorkload | NotApplicable:
    """What static workloads, one at each of `points` of the model's symbols, have in common.

    Args:
        greatest, least: the symbols at the largest instance, and at the least of more than 0.
        sums, steps: as of `Fitter`.
    """
    found = generalised([one.func for one in workloads], points, DIVISORS, sums, steps)
    if isinstance(found, NotApplicable):
        return found
    extents, shapes = _extents(found, least or {}), _shapes(workloads, Fitter(points, DIVISORS, sums, steps))
    names = [f"e{i}" for i in range(len(extents))]
    local = [dict(zip(names, (dim.at(point) for dim in extents), strict=True)) for point in points]
    own = {str(dim): Dim.symbol(name) for name, dim in zip(names, extents, strict=True)}
    renamed = [own[a] + own[b] for a, b in (one.symbols for one in sums) if a in own and b in own]
    again = generalised([one.func for one in workloads], local, DIVISORS, renamed) if extents else found
    if isinstance(again, NotApplicable):
        return again
    most = tuple(dim.at(greatest) for dim in extents) if greatest else ()
    fewest = tuple(dim.at(least) for dim in extents) if least else ()
    return DynamicWorkload(again, workloads[0].num_outputs, extents, shapes, most, fewest)


def _shapes(workloads: Sequence[Workload], fitter: Fitter) -> tuple[tuple[Dim, ...], ...]:
    def fitted(values: tuple[Any, ...]) -> Dim:
        found = fitter.fit([int(value) for value in values])
        assert found is not None, f"{values} are no dim, though the template has them"
        return found

    shapes = [[arg.shape for arg in workload.args] for workload in workloads]
    return tuple(tuple(map(fitted, zip(*of_arg, strict=True))) for of_arg in zip(*shapes, strict=True))


def _extents(template: Template, least: Mapping[str, int]) -> tuple[Dim, ...]:
    """One, if all that depends on symbols is a polynomial in it; else the symbols themselves, or numbers of tiles.

    One is positive: of the sizes [4, n] the difference is n - 4, which is no extent.

    Those are taken where nothing else of a symbol is in the workload.
    """
    dims = sorted(set(template.holes.values()), key=lambda dim: (len(dim.terms), str(dim)))
    if not dims:
        return ()
    single = [dim for dim in dims if all(_is_in(other, dim) for other in dims) and (not least or dim.at(least) > 0)]
    if single:
        return (single[0],)
    names = sorted({name for dim in dims for monomial, _ in dim.terms for name in monomial})
    plain = {name for name in names if quotient(name) is None}
    of_tiles = [name for name in names if (q := quotient(name)) and not set(q.dividend.symbols) <= plain]
    return tuple(Dim.symbol(name) for name in (*sorted(plain), *of_tiles))


def _is_in(dim: Dim, base: Dim) -> bool:
    """Whether `dim` is `a * base + b` with whole numbers: an odd extent may not be half of something."""
    terms, of_base = dict(dim.terms), dict(base.terms)
    terms.pop((), 0)
    if () in of_base:
        return dim == base
    ratios = {terms.get(monomial, 0) / factor for monomial, factor in of_base.items()}
    return set(terms) == set(of_base) and len(ratios) == 1 and all(ratio == int(ratio) for ratio in ratios)


def has_free_rows(workload: DynamicWorkload) -> bool:
    """Whether rows may be computed that nobody asked for: `e0` is the first dim of buffers, and a row of what is
    written depends on no other row of what is read.

    Then a kernel may compute whole tiles, past the last row, where there is memory for them.
    """
    if len(workload.extents) != 1:
        return False
    one, other = (workload.at((extent,)) for extent in (11, 13))
    for a, b in zip(one.args, other.args, strict=True):
        rows = (a.shape[:1], b.shape[:1])
        if a.shape[1:] != b.shape[1:] or (rows[0] != rows[1] and rows != ((11,), (13,))):
            return False
    return _Rows(one.func, 11).are_free


def has_growing_constants(workload: DynamicWorkload, domain: Domain) -> bool:
    """Whether it reads constants that are larger for larger instances, and end with the greatest one's last row."""
    args = workload.at(workload.extents_at(domain.greatest)).args
    return any(
        arg.is_constant and any(dim.constant is None for dim in shape)
        for arg, shape in zip(args, workload.shapes, strict=True)
    )


class _Rows:
    """One look at a workload with so many rows."""

    def __init__(self, func: Any, rows: int) -> None:
        self._rows = rows
        self.are_free = True
        tvm_ffi.structural_walk(func.body, (SBlock, self._look))

    def _look(self, block: Any) -> None:
        if not block.iter_vars:  # the root
            return
        of_rows = [iv for iv in block.iter_vars if self._is_extent(iv.dom.extent)]
        if len(of_rows) != 1 or int(of_rows[0].iter_type) != tirx.IterVar.DataPar:
            self.are_free = False
            return
        row = of_rows[0].var

        def access(node: Any) -> None:
            indices = list(node.indices)
            buffer = node.source if isinstance(node, ir.TensorLoad) else node.buffer
            if len(buffer.shape) and self._is_extent(buffer.shape[0]):
                self.are_free &= indices.pop(0).same_as(row)
            for index in indices:
                self.are_free &= not _depends(index, row)

        for part in (block.body, block.init):
            if part is not None:
                tvm_ffi.structural_walk(part, [(ir.TensorLoad, access), (tirx.BufferStore, access)])

    def _is_extent(self, dim: Any) -> bool:
        return isinstance(dim, tirx.IntImm) and int(dim) == self._rows


def _depends(index: Any, row: Any) -> bool:
    """Whether an index follows the row, or what is read somewhere."""
    found: list[Any] = []
    tvm_ffi.structural_walk(index, (ir.TensorLoad, found.append))
    tvm_ffi.structural_walk(index, (ir.Var, lambda var: found.append(var) if var.same_as(row) else None))
    return bool(found)
