"""Loops and accesses as statements of TIR, for kernels that are written out instead of being scheduled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

Index = Any
"""An int, or an expression in int64."""

_SERIAL, _PARALLEL = tirx.ForKind.SERIAL, tirx.ForKind.PARALLEL
_UNROLLED, _VECTORIZED = tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED


def integer(value: Index) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else value


def buffer(name: str, shape: Sequence[int], scope: str = "global", dtype: str = "float32") -> Any:
    return tirx.decl_buffer([integer(size) for size in shape], dtype, name, scope=scope)


def byte_array(name: str) -> Any:
    """A parameter of as many bytes as it happens to have."""
    return tirx.decl_buffer([tirx.Var(f"{name}_bytes", "int64")], "uint8", name)


def load(source: Any, *at: Index) -> Any:
    return tirx.BufferLoad(source, [integer(i) for i in at])


def store(target: Any, value: Any, *at: Index) -> tirx.BufferStore:
    return tirx.BufferStore(target, value, [integer(i) for i in at])


def sequence(*statements: Any) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def serial(extent: Index, body: Callable[[Any], Any]) -> Any:
    return _loop(extent, body, _SERIAL)


def parallel(extent: Index, body: Callable[[Any], Any]) -> Any:
    return _loop(extent, body, _PARALLEL)


def unrolled(extent: int, body: Callable[[Any], Any]) -> Any:
    return _loop(extent, body, _UNROLLED)


def vectorized(extent: int, body: Callable[[Any], Any]) -> Any:
    return _loop(extent, body, _VECTORIZED)


def named(name: str, value: Any, body: Callable[[Any], Any]) -> Any:
    """`value`, computed once, as a variable of `body`."""
    var = tirx.Var(name, "int64")
    return sequence(tirx.Bind(var, integer(value)), body(var))


def tile(rows: int, columns: int, lanes: int, body: Callable[[Any, Any], Any]) -> Any:
    """`body(row, column)` for a tile in registers: unrolled, in vectors, and the columns that fill none in one more."""

    def row(i: Any) -> Any:
        whole, rest = divmod(columns, lanes)
        parts = []
        if whole:
            parts.append(unrolled(whole, lambda v: vectorized(lanes, lambda lane: body(i, v * integer(lanes) + lane))))
        if rest:
            parts.append(vectorized(rest, lambda lane: body(i, lane + integer(whole * lanes))))
        return sequence(*parts)

    return unrolled(rows, row)


def in_vectors(extent: int, lanes: int, body: Callable[[Any], Any]) -> Any:
    """`body(index)` for all of an axis: vectors in a loop, and what fills none in a shorter one."""

    def vector(start: Any, size: int) -> Any:
        return vectorized(size, lambda lane: body(start + lane))

    return sequence(*in_tiles(extent, lanes, vector))


def in_tiles(extent: int, size: int, body: Callable[[Any, int], Any]) -> list[Any]:
    """`body(start, size)` for whole tiles of an axis, in a loop, and for a smaller one at its end."""
    whole, rest = divmod(extent, size)
    parts = [serial(whole, lambda i: body(i * integer(size), size))] if whole else []
    return parts + ([body(integer(whole * size), rest)] if rest else [])


def _loop(extent: Index, body: Callable[[Any], Any], kind: Any) -> Any:
    if isinstance(extent, int) and extent == 1 and kind != _PARALLEL:
        return body(integer(0))
    var = tirx.Var("i", "int64")
    return tirx.For(var, integer(0), integer(extent), kind, body(var))
