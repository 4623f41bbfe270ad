"""Parallel loops that follow one another, in one launch of the thread pool: every thread waits for the others between.

A launch costs a microsecond from the call to the return, a barrier a quarter of that (two cores of a Zen 5), and a
small network has a kernel every thirty microseconds. Works on lowered PrimFuncs whose parameters are not packed yet
(`lower.flat`): there a kernel is allocations, then loops at the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.tir.walk import found

LAUNCH, _BARRIER = "pragma_parallel_launch_point", "pragma_parallel_barrier_when_finish"


@dataclass(frozen=True, slots=True)
class Stage:
    """A parallel loop over all threads' shares; `is_serial`: of one iteration, which the first thread runs."""

    loop: Any
    is_serial: bool


@dataclass(frozen=True, slots=True)
class Steps:
    """A flat kernel: the buffers and numbers that all its stages see, and its stages in their order."""

    buffers: tuple[Any, ...]
    stages: tuple[Stage, ...]

    @property
    def has_memory(self) -> bool:
        """Whether its stages hand memory of its own to one another."""
        return any(isinstance(buffer, tirx.AllocBuffer) for buffer in self.buffers)


def steps(func: PrimFunc) -> Steps | None:
    """None where a thread may leave early (the others would wait for it for ever), or parallel loops lie deeper."""
    if asserts(func) or may_fail(func.body):
        return None
    body = list(func.body.seq) if isinstance(func.body, tirx.SeqStmt) else [func.body]
    if not any(map(_is_parallel, body)):
        return None if _has_parallel(func.body) else Steps((), (_once([func.body]),))
    buffers: list[Any] = []
    stages: list[Stage] = []
    waiting: list[Any] = []
    for statement in body:
        if isinstance(statement, tirx.AllocBuffer | tirx.DeclBuffer) or _is_number(statement):
            buffers.append(statement)
        elif _is_parallel(statement):
            stages += [_once(waiting)] if waiting else []
            waiting = []
            stages.append(Stage(statement, False))
        elif isinstance(statement, tirx.For | tirx.BufferStore | tirx.IfThenElse) and not _has_parallel(statement):
            waiting.append(statement)
        else:
            return None
    stages += [_once(waiting)] if waiting else []
    return Steps(tuple(buffers), tuple(stages))


def one_launch(stages: Sequence[Stage], buffers: Sequence[Any] = ()) -> Any:
    """A statement that runs `stages` in their order, after the declarations in `buffers`."""
    following = [*stages[1:], None]
    body = [
        stage.loop if after is None or (stage.is_serial and after.is_serial) else _pragma(_BARRIER, stage.loop)
        for stage, after in zip(stages, following, strict=True)
    ]
    launch = _pragma(LAUNCH, body[0] if len(body) == 1 else tirx.SeqStmt(body))
    return tirx.SeqStmt([*buffers, launch]) if buffers else launch


def joined(func: PrimFunc) -> PrimFunc:
    """A flat kernel with one launch for all its parallel loops; `func` itself where it has one, or none."""
    parts = steps(func)
    return func if parts is None or len(parts.stages) < 2 else func.with_body(one_launch(parts.stages, parts.buffers))


def asserts(func: PrimFunc) -> bool:
    return bool(found(func.body, tirx.AssertStmt))


def _once(statements: Sequence[Any]) -> Stage:
    body = statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))
    zero, one = tirx.const(0, "int32"), tirx.const(1, "int32")
    return Stage(tirx.For(tirx.Var("once", "int32"), zero, one, tirx.ForKind.PARALLEL, body), True)


def _pragma(key: str, body: Any) -> tirx.AttrStmt:
    return tirx.AttrStmt(tirx.const(0, "int32"), key, tirx.const(1, "int32"), body)


def _is_number(statement: Any) -> bool:
    """Whether it binds what depends on no memory: how many tiles the extents of a kernel of many shapes make."""
    return isinstance(statement, tirx.Bind) and not any(
        found(statement.value, kind) for kind in (ir.TensorLoad, ir.Call)
    )


def _is_parallel(statement: Any) -> bool:
    return isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL


def _has_parallel(statement: Any) -> bool:
    return any(map(_is_parallel, found(statement, tirx.For)))


def may_fail(statement: Any) -> bool:
    """Whether it calls something that may report an error."""
    return any("packed" in getattr(call.op, "name", "") for call in found(statement, ir.Call))
