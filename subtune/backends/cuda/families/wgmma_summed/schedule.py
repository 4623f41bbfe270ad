"""Two products that are added up, in one kernel: `wgmma`'s, whose steps of k are those of the one, then of the other.

A convolution and the shortcut of its block: what the shortcut makes is neither written nor read again. They have the
same rows of a tile, so that the pixels of a 1x1 convolution are no single run of rows where the other one's have gaps.
"""

from __future__ import annotations

from subtune.backends.base import Problem
from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.families.wgmma.schedule import Read, WgmmaKnobs, product_in_tiles, read_of
from subtune.core.kernel import Kernel, NotApplicable
from subtune.patterns.summed import Summed


def schedule(problem: Problem[CUDAModel], knobs: WgmmaKnobs) -> Kernel | NotApplicable:
    reads = reads_of(problem)
    product = reads if isinstance(reads, NotApplicable) else product_in_tiles(problem, reads, knobs.tiling)
    if isinstance(product, NotApplicable):
        return product
    return product.kernel(tuple(product.buffers.values()), product.store)


def reads_of(problem: Problem[CUDAModel]) -> tuple[Read, Read] | NotApplicable:
    """Both products, with the same groups of rows, and every operand along k; the one with the epilogue first."""
    pattern = problem.pattern
    if not isinstance(pattern, Summed):
        return NotApplicable("no sum of two products")
    for keeps_rows in (False, True):
        front = read_of(problem, pattern.front, keeps_rows)
        beside = read_of(problem, pattern.beside, keeps_rows)
        if isinstance(front, NotApplicable):
            return front
        if isinstance(beside, NotApplicable):
            return beside
        views = front.view, beside.view
        if any(dims[-1].group != view.inner for view in views for dims in (view.a, view.b)):
            return NotApplicable("an operand across k")
        if _result(front) == _result(beside):
            return front, beside
    return NotApplicable("products of different rows")


def _result(read: Read) -> tuple[object, ...]:
    """The groups of batches, rows and columns, as dims of what the product makes."""
    anchor, view = read.sch.get(read.stages.anchors[0]), read.view
    dims = list(anchor.body.indices)

    def of_group(group: int) -> tuple[tuple[int, int], ...]:
        axes = (anchor.iter_vars[axis] for axis in view.groups[group].axes)
        return tuple((dims.index(axis.var), int(axis.dom.extent)) for axis in axes)

    return tuple(tuple(map(of_group, groups)) for groups in (view.batch, view.rows, (view.n,)))
