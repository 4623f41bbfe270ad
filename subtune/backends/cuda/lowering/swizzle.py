"""Shared memory without bank conflicts: 16-byte chunks of a tile's rows exchange places, row by row.

    chunk c of row r lies at c ^ (r / (8 / chunks per row)) % 8:  8 rows of one column of chunks lie in 8 different
    groups of banks, so that `ldmatrix`, which reads exactly those, and the 16-byte stores take no turns.

TVM's own InjectPermutedLayout knows 2-byte elements and rows of 64 or 128 bytes; this one goes by bytes.
A block that copies to shared memory asks for it with the annotation `subtune_swizzle`.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.s_tir import SBlock
from tvm.tirx import PrimFunc

from subtune.core.workload import dtype_bits

SWIZZLE_ATTR = "subtune_swizzle"
_CHUNK_BYTES = 16
_LINE_CHUNKS = 8  # 128 bytes: all banks once


def can_swizzle(row: int, dtype: str) -> bool:
    """Whether rows of `row` elements swizzle without conflicts: 32 bytes or a larger power of two, or 128 x n."""
    row_bytes = row * dtype_bits(dtype) // 8
    return row_bytes % 128 == 0 or row_bytes in (32, 64)


def swizzled(column: Any, row: Any, row_elements: int, dtype: str) -> Any:
    """Where element (row, column) of a tile lies in its row."""
    chunk = _CHUNK_BYTES * 8 // dtype_bits(dtype)
    chunks = row_elements // chunk
    moved = min(chunks, _LINE_CHUNKS)
    turn = tirx.floormod(tirx.floordiv(row, _LINE_CHUNKS // moved), moved)
    place, inside = tirx.floordiv(column, chunk), tirx.floormod(column, chunk)
    if chunks <= _LINE_CHUNKS:
        return tirx.bitwise_xor(place, turn) * chunk + inside
    low, high = tirx.floormod(place, _LINE_CHUNKS), tirx.floordiv(place, _LINE_CHUNKS)
    return (high * _LINE_CHUNKS + tirx.bitwise_xor(low, turn)) * chunk + inside


@tvm.transform.module_pass(opt_level=0, name="subtune.Swizzle")  # type: ignore[untyped-decorator]
def swizzle(mod: IRModule, _context: PassContext) -> IRModule:
    """Run after LowerMatchBuffer, before blocks are lowered: shared buffers still have their shapes."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        result[var] = _rewritten(func) if isinstance(func, tirx.PrimFunc) else func
    return result


def _rewritten(func: PrimFunc) -> PrimFunc:
    buffers: list[Any] = []

    def collect(block: Any) -> None:
        if SWIZZLE_ATTR in block.annotations:
            buffers.extend(region.source for region in block.writes)

    tvm_ffi.structural_walk(func.body, (SBlock, collect), order="pre")
    if not buffers:
        return func
    analyzer = tvm.sym.Analyzer()

    def bound(loop: Any) -> None:
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))

    # without the extents of the loops no index is known to stay within its chunk
    tvm_ffi.structural_walk(func.body, (tirx.For, bound), order="pre")

    def of(data: Any) -> Any | None:
        return next((b for b in buffers if data.args[0].same_as(b)), None)

    def at(buffer: Any, row: Any, column: Any) -> Any:
        return analyzer.simplify(swizzled(column, row, int(buffer.shape[-1]), str(buffer.dtype)))

    def store(node: Any) -> Any:
        buffer = next((b for b in buffers if b.same_as(node.buffer)), None)
        if buffer is None:
            return node
        *outer, row, column = node.indices
        return tirx.BufferStore(node.buffer, node.value, [*outer, row, at(buffer, row, column)])

    def call(node: Any) -> Any:
        if "ptx_legacy.ldmatrix" not in str(node.op):
            return node
        args = list(node.args)
        pointer, offset = args[5], args[6]
        _, data, begin, *_ = pointer.args
        buffer = of(data)
        if buffer is None:
            return node
        width = int(buffer.shape[-1])
        address = begin + offset
        row, column = tirx.floordiv(address, width), tirx.floormod(address, width)
        row, column = analyzer.simplify(row), analyzer.simplify(column)
        args[6] = analyzer.simplify(row * width + at(buffer, row, column))
        begin = tirx.IntImm(begin.ty, 0)
        args[5] = ir.Call(pointer.op, [pointer.args[0], data, begin, *pointer.args[3:]], ret_ty=pointer.ty)
        return ir.Call(node.op, args, node.attrs, ret_ty=node.ty)

    body = tvm_ffi.structural_map(func.body, [(tirx.BufferStore, store), (ir.Call, call)])
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
