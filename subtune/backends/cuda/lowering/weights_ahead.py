"""Weights that a kernel copies before the kernel in front of it has ended.

A kernel that is launched early waits before it touches global memory (`dependent_launch`), but for its constants: these
were written when the model was loaded. What its prologue copies of them asynchronously it copies before it waits:

    for stage: {copy A; copy B; commit}      ->      for stage: copy B;  wait;  for stage: {copy A; commit}

A group that is committed is all copies since the last one, so the first group has the weights of all stages, and who
waits for it finds them.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from tvm import ir, tirx
from tvm.script import tirx as T

from subtune.core.workload import CONSTANT_ARGS_ATTR
from subtune.tir.expressions import loads, variables
from subtune.tir.statements import sequence
from subtune.tir.walk import found

_COPY = "tirx.s_tir.cp_async_raw"
_COMMIT = "async_commit_queue_scope"
_SOURCE = 2
"""Which argument of a copy is the address that it reads."""
_IN_REGISTERS = ("local", "warp")


def weights_ahead(func: Any) -> Any:
    """A function whose kernels start early, lowered to threads; kernels without such copies are as they were."""
    constants = _constants(func)

    def changed(stmt: Any) -> Any:
        if isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == "thread_extent":
            return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, changed(stmt.body))
        if not isinstance(stmt, tirx.SeqStmt):
            return stmt
        if any(_is_group(one) for one in stmt.seq):
            return tirx.SeqStmt(_ordered(list(stmt.seq), constants))
        return tirx.SeqStmt([changed(one) for one in stmt.seq])

    return func.with_body(changed(func.body)) if constants else func


def _constants(func: Any) -> list[Any]:
    """The parameters that are constant, buffers or addresses, and views of them."""
    arrays = [param for param in func.params if not isinstance(param.ty, ir.PrimType)]  # behind a kernel's numbers
    constants = [arrays[int(index)] for index in func.attrs.get(CONSTANT_ARGS_ATTR, ())]
    for view in found(func.body, tirx.DeclBuffer):
        if _is_of(view.data, constants):
            constants.append(view.buffer)
    return constants


def _ordered(stmts: list[Any], constants: list[Any]) -> list[Any]:
    """The statements of a thread, with what copies constants in the prologue in front, and then the wait."""
    prologue = list(takewhile(lambda one: _is_group(one) or _is_in_registers(one), stmts))
    ahead, behind = [], []
    for stmt in prologue:
        if not _is_group(stmt):
            ahead.append(stmt)
            continue
        parts = list(stmt.body.seq) if isinstance(stmt.body, tirx.SeqStmt) else [stmt.body]
        rest = [one for one in parts if not _copies_constants(one, constants)]
        if rest:  # a group has to have something
            ahead += [one for one in parts if _copies_constants(one, constants)]
        behind.append(tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, sequence(*(rest or parts))))
    wait = tirx.Evaluate(T.ptx.griddepcontrol.wait())
    return [*ahead, wait, *behind, *stmts[len(prologue) :]]


def _is_group(stmt: Any) -> bool:
    return isinstance(stmt, tirx.AttrStmt) and str(stmt.attr_key) == _COMMIT


def _is_in_registers(stmt: Any) -> bool:
    """Whether it reads no memory, and writes none but registers."""
    if isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
        return True
    is_store = isinstance(stmt, tirx.BufferStore) and stmt.buffer.scope() in _IN_REGISTERS
    return (is_store or isinstance(stmt, tirx.Bind)) and not loads(stmt) and not found(stmt, ir.Call)


def _copies_constants(stmt: Any, constants: list[Any]) -> bool:
    """Whether it is a copy of constants, or a loop of such."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    if not isinstance(stmt, tirx.Evaluate) or loads(stmt):
        return False
    call = stmt.value
    is_copy = isinstance(call, ir.Call) and str(getattr(call.op, "name", "")) == _COPY
    return is_copy and _is_of(call.args[_SOURCE], constants)


def _is_of(data: Any, buffers: list[Any]) -> bool:
    """Whether it is the address of one of the buffers."""
    return any(var.same_as(buffer) for var in variables(data) for buffer in buffers)
