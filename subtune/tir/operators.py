"""Operators of our own in TIR, which TVM vectorises like its own and lowers as they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import ir, tirx

_PURE = 1  # CallEffectKind::kPure


def register(name: str, lowered: Callable[[Any], Any], cuda: Callable[[Any], Any] | None = None) -> None:
    """A pure operator, once a process; `lowered` gives for a call of it, vectorised or not, what LLVM is given, and
    `cuda` what CUDA is."""
    if name in set(ir.Op.list_op_names()):
        return
    tvm.get_global_func("ir.RegisterOp")(name, "")
    op = ir.Op.get(name)
    op.set_attr("TVectorizable", True)
    op.set_attr("TCallEffectKind", _PURE)
    op.set_attr("TScriptPrinterName", name.rpartition(".")[2])
    tirx.register_intrin_lowering(name, target="llvm", f=lowered)
    if cuda is not None:
        tirx.register_intrin_lowering(name, target="cuda", f=cuda)
