"""Loops in which LLVM 22 would look for a checksum without end, begun at one.

    for k < 48:  for j < 44:  top[0] = max(top[0], x[k * 44 + j])
->  for 1 <= k < 49:  ...  x[(k - 1) * 44 + j]

Once the inner loop is unrolled, its result depends on the one before it by 2 ** 44 ways: both the comparison and the
choice read every value in between. LLVM's HashRecognize walks them all in a loop of 8, 16, 24, ... iterations, and
leaves loops alone that do not begin at zero. LLVM 23 remembers where it has been (llvm/llvm-project#211711).

This comes after TVM's simplifier, which would begin at zero again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.tir.expressions import loads, variables
from subtune.tir.substitute import substitute
from subtune.tir.walk import found

_SHORT = 8
"""Steps of a chain: 3 ** 8 ways (an argmax reads each value thrice) take no time."""
_CHOICES = (tirx.Max, tirx.Min, tirx.Select)

_Place = tuple[Any, str, frozenset[Any]]
"""An element: a buffer, the index as text, and the variables in it."""


def begun_at_one() -> Any:
    @tirx.transform.prim_func_pass(opt_level=0)
    def run(func: PrimFunc, _mod: Any, _ctx: Any) -> PrimFunc:
        return func.with_body(tvm_ffi.structural_map(func.body, (tirx.For, _changed)))

    return run


def _changed(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.extent, tirx.IntImm) or int(loop.extent) % 8:
        return loop
    if not isinstance(loop.min, tirx.IntImm) or int(loop.min) or max(_steps(loop.body).values(), default=0) <= _SHORT:
        return loop
    later = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    one = tirx.const(1, str(later.ty))
    body = substitute(loop.body, {loop.loop_var: later - one})
    return tirx.For(later, one, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _steps(stmt: tirx.Stmt) -> Counter[_Place]:
    """How often in a row `stmt` chooses anew what an element is, with its loops unrolled."""
    if isinstance(stmt, tirx.BufferStore):
        is_choice = any(found(stmt.value, kind) for kind in _CHOICES)
        if not is_choice or not any(load.source.same_as(stmt.buffer) for load in loads(stmt.value)):
            return Counter()
        return Counter({(stmt.buffer, str(stmt.indices), frozenset(variables(stmt.indices))): 1})
    if isinstance(stmt, tirx.SeqStmt):
        return sum(map(_steps, stmt.seq), Counter())
    if isinstance(stmt, tirx.IfThenElse):
        return _steps(stmt.then_case) | (_steps(stmt.else_case) if stmt.else_case is not None else Counter())
    steps = _steps(stmt.body) if hasattr(stmt, "body") else Counter()
    if not isinstance(stmt, tirx.For) or not isinstance(stmt.extent, tirx.IntImm):
        return steps
    return Counter({place: n if stmt.loop_var in place[2] else n * int(stmt.extent) for place, n in steps.items()})
