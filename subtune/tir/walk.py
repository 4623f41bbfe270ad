"""Statements of a scheduled function: found in it, and put back with something else inside."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock


def found(node: Any, kind: Any) -> list[Any]:
    nodes: list[Any] = []
    tvm_ffi.structural_walk(node, (kind, nodes.append))
    return nodes


def holds(stmt: tirx.Stmt, name: str) -> bool:
    """Whether the block `name` is in `stmt`."""
    return any(block.name_hint == name for block in found(stmt, SBlock))


def with_body(loop: Any, body: Any) -> tirx.For:
    return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations)
