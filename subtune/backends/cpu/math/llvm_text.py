"""LLVM's own text inside of a kernel: functions that TVM's code calls, and that LLVM inlines."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

_PRAGMA = "pragma_import_llvm"


def inside_root(body: Any, text: str) -> Any:
    """`text`, LLVM functions, for what `body` calls: a pragma below the root block, which has to stay outermost."""
    if not isinstance(body, tvm.s_tir.SBlockRealize):
        return tirx.AttrStmt(tirx.const(0, "int32"), _PRAGMA, ir.StringImm(text), body)
    root = body.block
    block = tvm.s_tir.SBlock(
        root.iter_vars, root.reads, root.writes, root.name_hint,
        tirx.AttrStmt(tirx.const(0, "int32"), _PRAGMA, ir.StringImm(text), root.body),
        root.init, root.alloc_buffers, root.match_buffers, root.annotations,
    )  # fmt: skip
    return tvm.s_tir.SBlockRealize(body.iter_values, body.predicate, block)


def where_called(func: PrimFunc, operator: str, text: str) -> PrimFunc:
    """`func` with the LLVM functions that its operator of that name calls; unchanged where it has none."""
    used: list[Any] = []

    def call(node: Any) -> None:
        if isinstance(node.op, ir.Op) and node.op.name == operator:
            used.append(node)

    tvm_ffi.structural_walk(func.body, (ir.Call, call))
    return func.with_body(inside_root(func.body, text)) if used else func
