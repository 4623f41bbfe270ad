"""The last tile of columns computes only the vectors that have any.

    for n < 7:  for k:  for v < 2:  c[v] += a[k] * b[n, k, v]
->  for n < 7:  if n < 6:  for k:  for v < 2:  ...     else:  for k:  for v < 1:  ...         of 197 columns, 13 vectors

A tile of many columns then wastes no more than a narrow one, and two loops over k are only longer code.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.tirx import PrimFunc

from subtune.backends.cpu.loops.prefetch import MicroKernel
from subtune.tir.blocks import root_stages, with_stages
from subtune.tir.substitute import substitute
from subtune.tir.walk import found, holds, with_body


def narrowed(func: PrimFunc, kernel: MicroKernel, axis: int, columns: int, nr: int, lanes: int) -> PrimFunc:
    """`func`, scheduled, with a last tile of as many vectors as `columns` need; unchanged where that is all of them.

    A single tile stays as it is: who wants fewer vectors makes it narrower.

    Args:
        axis: of the columns, among those of the micro-kernel's block.
    """
    whole, left = divmod(columns, nr)
    vectors = -(-left // lanes)
    if not (whole and left) or vectors == nr // lanes:
        return func

    def divided(stmt: tirx.Stmt, depth: int) -> Any:
        if isinstance(stmt, tirx.SeqStmt) and depth:
            return tirx.SeqStmt([divided(s, depth) if holds(s, kernel.update) else s for s in stmt.seq])
        if depth:
            return with_body(stmt, divided(stmt.body, depth - 1))
        (realize,) = (r for r in found(stmt, SBlockRealize) if r.block.name_hint == kernel.update)
        first = realize.iter_values[axis]
        for loop in found(stmt, tirx.For):
            first = substitute(first, {loop.loop_var: tirx.const(0, "int64")})
        # A condition on the loop variable itself would have TVM give each of the two its own place for the sums.
        is_whole = tirx.Var("is_whole", "bool")
        is_before = first < tirx.const(whole * nr, "int64")
        return tirx.SeqStmt([tirx.Bind(is_whole, is_before), tirx.IfThenElse(is_whole, stmt, narrow(stmt))])

    def narrow(stmt: tirx.Stmt) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([narrow(s) for s in stmt.seq])
        if not isinstance(stmt, tirx.For):
            return stmt
        var = tirx.Var(stmt.loop_var.name, stmt.loop_var.ty)
        body = substitute(narrow(stmt.body), {stmt.loop_var: var})
        extent = tirx.const(vectors, "int64") if _is_over_vectors(stmt, nr // lanes, lanes) else stmt.extent
        return tirx.For(var, stmt.min, extent, stmt.kind, body, stmt.thread_binding, stmt.annotations)

    stages = [divided(s, kernel.depth) if holds(s, kernel.update) else s for s in root_stages(func)]
    return with_stages(func, stages, func.body.block.alloc_buffers)


def _is_over_vectors(loop: Any, vectors: int, lanes: int) -> bool:
    inner = loop.body
    is_vector = isinstance(inner, tirx.For) and inner.kind == tirx.ForKind.VECTORIZED and int(inner.extent) == lanes
    return is_vector and loop.kind == tirx.ForKind.UNROLLED and int(loop.extent) == vectors
