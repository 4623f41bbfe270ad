"""From the sums of a product to memory: the epilogue computed on the way, row by row, in wide stores."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule, ScheduleError

from subtune.core.workload import dtype_bits
from subtune.tir.blocks import all_blocks, is_reduction
from subtune.tir.tile import extent_of, vector_width

LANES = 32
COMPUTED = 4  # lanes of float32 arithmetic: 8 would be a type CUDA does not have (apache-tvm 0.27.0.post1)


def merge_epilogue(sch: Schedule) -> str:
    """Inline the blocks between the anchor and the output into the output; "" or why that is impossible."""
    outputs = sch.get_output_blocks(sch.get_sblock("root"))
    names = {sch.get(block).name_hint for block in outputs}
    if len(names) != 1:
        return f"{len(names)} outputs, an epilogue on the sums has one"
    is_after = False
    for block_rv in all_blocks(sch):
        block = sch.get(block_rv)
        if is_reduction(block):
            is_after = True
        elif is_after and block.name_hint not in names:
            try:
                sch.compute_inline(block_rv)
            except ScheduleError as e:
                return f"block {block.name_hint} cannot be inlined: {str(e).strip().splitlines()[-1]}"
    return ""


def inline_epilogue(sch: Schedule, store: Any) -> str:
    """Inline what consumes the sums into `store`, the copy that writes them; "" or why that is impossible."""
    while consumers := list(sch.get_consumers(store)):
        if len(consumers) > 1:
            return "the sums are read by more than one block"
        try:
            while beside := _producers_beside(sch, consumers[0], store):
                for producer in beside:  # what the model computes of other inputs: they may have producers in turn
                    sch.compute_inline(producer)
            sch.reverse_compute_inline(consumers[0])
        except ScheduleError as e:
            return f"the epilogue cannot be inlined: {str(e).strip().splitlines()[-1]}"
    return ""


def _producers_beside(sch: Schedule, block: Any, store: Any) -> list[Any]:
    """The blocks that `block` reads, but `store`."""
    name = sch.get(store).name_hint
    return [producer for producer in sch.get_producers(block) if sch.get(producer).name_hint != name]


def store_rows(sch: Schedule, store: Any, vector: int) -> None:
    """A warp's tile of `store` (its two innermost loops) by its lanes: `vector` elements each, at most 16 bytes."""
    out_bytes = dtype_bits(str(sch.get(store).writes[0].source.dtype)) // 8
    width = min(vector, 16 // out_bytes)
    rows, columns = sch.get_loops(store)[-2:]
    width = max(1, min(width, extent_of(sch, rows) * extent_of(sch, columns) // LANES))  # every lane stores
    across = LANES
    while extent_of(sch, columns) % (across * width):
        across //= 2  # lanes side by side in a row; the others take the next rows
    written = sch.cache_write(store, 0, "local") if width > COMPUTED else None
    r0, r1 = sch.split(rows, [None, LANES // across])
    c0, c1, v = sch.split(columns, [None, across, width])
    sch.reorder(r0, c0, r1, c1, v)
    lane = sch.fuse(r1, c1)
    sch.bind(lane, "threadIdx.x")
    if written is None:
        sch.vectorize(v)
        return
    sch.reverse_compute_at(written, lane, preserve_unit_loops=True)
    u, v = sch.split(v, [None, COMPUTED])
    sch.unroll(u)
    sch.vectorize(v)
    depth = len(sch.get_loops(store)) - 2
    sch.vectorize(sch.fuse(*sch.get_loops(written)[depth:]))


def sum_parts(sch: Schedule, parts: Any, store: Any, vector: int, threads: int = 64) -> str:
    """The second kernel of split-K: add the parts and compute the epilogue, `vector` elements a thread."""
    reason = inline_epilogue(sch, store)
    if reason:
        return reason
    for crop in sch.get_producers(store):
        if not is_reduction(sch.get(crop)):
            sch.compute_inline(crop)  # where padding was added
    *rows, columns = sch.get_loops(store)
    extent = extent_of(sch, columns)
    width = vector_width(extent, min(vector, COMPUTED))
    across = vector_width(extent // width, threads)
    row = sch.fuse(*rows) if len(rows) > 1 else rows[0] if rows else sch.add_unit_loop(columns)
    r0, r1 = sch.split(row, [None, threads // across])
    c0, c1, v = sch.split(columns, [None, across, width])
    sch.reorder(r0, c0, r1, c1, v)
    sch.bind(sch.fuse(r0, c0), "blockIdx.x")
    sch.bind(r1, "threadIdx.y")
    sch.bind(c1, "threadIdx.x")
    thread = c1
    sch.set_scope(parts, 0, "local")
    sch.compute_at(parts, thread, preserve_unit_loops=True)
    *elements, part = sch.get_loops(parts)[3:]
    sch.reorder(part, *elements)
    for loop in (part, *elements):
        sch.unroll(loop)  # all parts are asked for at once
    sch.vectorize(v)
    return ""
