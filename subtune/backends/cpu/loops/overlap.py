"""An anchor whose columns no vector divides computes whole vectors: the last one overlaps its neighbour.

    C[h, w, c] += A[h, w, c] * B[c]                                      c < 59
->  Cp[h, w, v] += A[h, w, at(v)] * B[at(v)]      v < 64, at(v) = min(v / 16 * 16, 43) + v % 16
    D[h, w, at(v)] = epilogue(Cp[h, w, v])

What two vectors share is computed by both, to the same values, so that nothing is masked and no element is beyond the
end. Where a tile has more vectors than are left, they all are the last one.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import is_load_of, loads
from subtune.tir.substitute import substitute


def lanes_of(columns: int, lanes: int) -> int:
    """The widest vector, of up to `lanes` elements, that the columns fill."""
    while lanes > columns:
        lanes //= 2
    return lanes


def overlapping(func: PrimFunc, name: str, axis: int, lanes: int, extent: int) -> PrimFunc | NotApplicable:
    """`func` with its anchor, and what is computed from it, over `extent` columns, whole vectors of `lanes`.

    Args:
        name: of the anchor; it gets a result of its own, which a stage after it reads.
        axis: of the columns, among the anchor's; the output's innermost one.
    """
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == name)
    anchor = stage_block(stages[at])
    result = anchor.body.buffer
    columns = int(anchor.iter_vars[axis].dom.extent)
    after = [stage_block(stage) for stage in stages[at + 1 :]]
    column_of = [_column(block, result) for block in after]
    if any(column is None for column in column_of):
        return NotApplicable("an output is not computed column by column from the anchor")
    wide = tirx.decl_buffer([*result.shape[:-1], tirx.const(extent, "int64")], str(result.dtype), f"{name}_wide")

    def moved(block: Any, column: Any) -> tuple[Any, Any]:
        """What a block stores, and where: its columns those of the vectors, the anchor's result `wide`."""
        place = {column: _place(column, columns, lanes)}
        own = tirx.Var("own", "int64")

        def follow(load: ir.TensorLoad) -> Any:
            return tirx.BufferLoad(wide, [*load.indices[:-1], own]) if load.source.same_as(result) else load

        value = substitute(tvm_ffi.structural_map(block.body.value, (ir.TensorLoad, follow)), place)
        return substitute(value, {own: column}), [substitute(index, place) for index in block.body.indices]

    value, _ = moved(anchor, anchor.iter_vars[axis].var)
    indices = list(anchor.body.indices)
    init = tirx.BufferStore(wide, anchor.init.value, indices)
    body = tirx.BufferStore(wide, value, indices)
    new = [*stages[:at], nest(name, anchor.iter_vars, {axis: extent}, body, init)]
    if any(param.same_as(result) for param in func.params):
        new.append(_stored(result, wide, columns, lanes))
    for block, column in zip(after, column_of, strict=True):
        value, indices = moved(block, column)
        own = next(i for i, iv in enumerate(block.iter_vars) if iv.var.same_as(column))
        body = tirx.BufferStore(block.body.buffer, value, indices)
        new.append(nest(block.name_hint, block.iter_vars, {own: extent}, body, None))
    kept = [buffer for buffer in func.body.block.alloc_buffers if not buffer.same_as(result)]
    return with_stages(func, new, [*kept, wide])


def _place(vector: Any, columns: int, lanes: int) -> Any:
    """The column of a place in the vectors."""
    width = tirx.const(lanes, "int64")
    first = tirx.Min(tirx.floordiv(vector, width) * width, tirx.const(columns - lanes, "int64"))
    return first + tirx.floormod(vector, width)


def _column(block: Any, result: Any) -> Any | None:
    """The axis along which a block reads the columns of `result`; None where it reads them otherwise."""
    own = {iv.var for iv in block.iter_vars}
    read = [load.indices[-1] for load in loads(block.body.value) if is_load_of(load, result)]
    if not read or read[0] not in own or any(not index.same_as(read[0]) for index in read):
        return None
    return read[0]


def _stored(output: Any, wide: Any, columns: int, lanes: int) -> Any:
    """The stage that takes the anchor's result to where it belongs."""
    axes = [tirx.Var(f"o{i}", "int64") for i in range(len(wide.shape))]
    iter_vars = [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), dim), var, 0) for var, dim in zip(axes, wide.shape, strict=True)
    ]
    indices = [*axes[:-1], _place(axes[-1], columns, lanes)]
    return nest(
        f"{output.name}_store", iter_vars, {}, tirx.BufferStore(output, tirx.BufferLoad(wide, axes), indices), None
    )
