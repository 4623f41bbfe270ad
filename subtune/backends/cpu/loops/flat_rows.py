"""The rows of a contraction that lie along several axes, as one: pixels of a pointwise convolution, tokens of a batch.

    C[h, w, n] += A[h, w, k] * B[n, k]                         h < 14, w < 14
    D[h, w, n] = epilogue(C[h, w, n])
->  C[r, n] += A[r // 14, r % 14, k] * B[n, k]                 r < 196
    D[r // 14, r % 14, n] = epilogue(C[r, n])

A tile of rows then need not divide an image's width: of 14 pixels, tiles of 4 would waste an eighth, of 196 nothing.
Where A holds the rows one after the other, the indices are those of a matrix once they are simplified; where it is
read in strides, each row of a tile has its own address, found once before the loop over k.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

from tvm import ir, tirx
from tvm.s_tir import Schedule
from tvm.tirx import PrimFunc

from subtune.backends.algorithms.strassen import unfold
from subtune.core.kernel import NotApplicable
from subtune.core.workload import Workload
from subtune.patterns.axes import Axis
from subtune.patterns.contraction import Contraction, contraction
from subtune.patterns.stages import Stages, anchored, classify
from subtune.tir.blocks import nest, root_stages, stage_block, with_axes, with_stages
from subtune.tir.expressions import loads, variables


def flat(workload: Workload, copies: bool = False) -> tuple[Schedule, Stages, Contraction] | NotApplicable:
    """`workload` inlined, the rows of its contraction one axis, in a schedule of one's own; or why they are not.

    Args:
        copies: A is copied before it is multiplied. Then rows of a batch are one axis too, and so are those that
            windows or a padding are read for.
    """
    found = _flat(workload, copies)
    return found if isinstance(found, NotApplicable) else (found[0].copy(), *found[1:])


def reread(func: PrimFunc) -> tuple[Schedule, Stages, Contraction]:
    """A contraction that was written anew, as a schedule."""
    sch = Schedule(func)
    stages = classify(sch)
    assert isinstance(stages, Stages), stages.reason
    info = contraction(sch, stages.anchors[0])
    assert isinstance(info, Contraction), info.reason
    return sch, stages, info


@lru_cache(maxsize=4)
def _flat(workload: Workload, copies: bool) -> tuple[Schedule, Stages, Contraction] | NotApplicable:
    """The same for all candidates of a workload."""
    found = anchored(workload, contraction)
    if isinstance(found, NotApplicable):
        return found
    func = rows_merged(*found, copies)
    return func if isinstance(func, NotApplicable) else reread(func)


def rows_merged(sch: Schedule, stages: Stages, info: Contraction, copies: bool) -> PrimFunc | NotApplicable:
    """The function in `sch` with the rows of its contraction one axis; or why they are not."""
    if obstacle := _obstacle(info, copies):
        return NotApplicable(obstacle)
    body = sch.mod["main"]
    nests = root_stages(body)
    at = next(i for i, one in enumerate(nests) if stage_block(one).name_hint == sch.get(stages.anchors[0]).name_hint)
    anchor, after = stage_block(nests[at]), [stage_block(one) for one in nests[at + 1 :]]
    made = anchor.body.buffer
    order = [iv.var for iv in anchor.iter_vars if int(iv.iter_type) == tirx.IterVar.DataPar]
    along = [anchor.iter_vars[axis.index].var for axis in info.of_role("m")]
    first = next(i for i, var in enumerate(order) if var.same_as(along[0]))
    is_in_order = _are(anchor.body.indices, order) and _are(order[first : first + len(along)], along)
    if not is_in_order or not all(_follows(block, made) for block in after):
        return NotApplicable("what follows does not go through the rows in their order")
    rows = _Rows(info.of_role("m"), made, first)
    outputs = [rows.of(block, [iv.var for iv in block.iter_vars[first : first + len(along)]]) for block in after]
    if any(param.same_as(made) for param in body.params):
        outputs.insert(0, rows.stored())
    kept = [buffer for buffer in body.body.block.alloc_buffers if not buffer.same_as(made)]
    return with_stages(body, [*nests[:at], rows.of(anchor, along), *outputs], [*kept, rows.made])


def _obstacle(info: Contraction, copies: bool) -> str:
    rows = info.of_role("m")
    if sum(axis.extent > 1 for axis in rows) < 2:
        return "rows along one axis"
    if info.per_group:
        return "groups"
    if copies:
        return ""
    if info.of_role("batch"):
        return "a batch"
    if info.a.param < 0:
        return "A is computed"
    taps = [info.axes[window.tap].extent for window in info.a.windows if window is not None]
    return "windows that overlap" if prod(taps) > 1 else ""


def _are(indices: Any, variables: list[Any]) -> bool:
    return len(indices) == len(variables) and all(i.same_as(v) for i, v in zip(indices, variables, strict=True))


def _follows(block: Any, made: Any) -> bool:
    """Whether all that `block` takes of `made` is the element at its own axes."""
    axes = [iv.var for iv in block.iter_vars]
    return all(_are(load.indices, axes) for load in loads(block.body.value) if load.source.same_as(made))


class _Rows:
    """Blocks with several axes of rows -> the same with one; the anchor's result with one dim for them."""

    def __init__(self, axes: tuple[Axis, ...], made: Any, first: int) -> None:
        """`first`: the dim of `made` at which those of the rows begin."""
        self._axes, self._old, self._first = axes, made, first
        self._extent = tirx.const(prod(axis.extent for axis in axes), "int64")
        self.made = tirx.decl_buffer(self._one(made.shape, self._extent), str(made.dtype), f"{made.name}_rows")

    def of(self, block: Any, rows: list[Any]) -> Any:
        """The stage of `block`, whose axes `rows` are those along which the rows lie."""
        row = self._row()
        position = dict(zip(rows, unfold(row.var, self._axes), strict=True))
        at = next(i for i, iv in enumerate(block.iter_vars) if iv.var.same_as(rows[0]))
        axes = [iv for iv in block.iter_vars if not any(iv.var.same_as(var) for var in rows)]
        axes.insert(at, row)

        def moved(buffer: Any, indices: Any, here: Any) -> tuple[Any, Any]:
            if buffer.same_as(self._old):
                return self.made, self._one(indices, row.var)
            # others stay axes, those of one element too: B has to be read by its own
            return buffer, [index if variables(index).isdisjoint(position) else here(index) for index in indices]

        return with_axes(block, axes, position, moved)

    def stored(self) -> Any:
        """The stage that writes an output that is the anchor's result itself."""
        axes = [
            tirx.IterVar(ir.Range(tirx.const(0, "int64"), dim), tirx.Var(f"o{i}", "int64"), tirx.IterVar.DataPar)
            for i, dim in enumerate(self.made.shape)
        ]
        at = [iv.var for iv in axes]
        place = [*at[: self._first], *unfold(at[self._first], self._axes), *at[self._first + 1 :]]
        body = tirx.BufferStore(self._old, tirx.BufferLoad(self.made, at), place)
        return nest(f"{self._old.name}_store", axes, {}, body, None)

    def _one(self, dims: Any, row: Any) -> list[Any]:
        """What belongs to the dims of the old result with `row` in place of those of the rows."""
        return [*dims[: self._first], row, *dims[self._first + len(self._axes) :]]

    def _row(self) -> Any:
        return tirx.IterVar(ir.Range(tirx.const(0, "int64"), self._extent), tirx.Var("row", "int64"), 0)
