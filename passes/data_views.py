"""Reshapes between kernels become views of the same bytes."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.ir import IRModule
from tvm.s_tir import SBlock, SBlockRealize


def reshapes_to_views(mod: IRModule) -> IRModule:
    """TVM's RewriteDataflowReshape, which fails on kernels that are no blocks: it does not see their bodies."""
    kernels = {var: func for var, func in mod.functions_items() if _is_without_blocks(func)}
    hidden = mod.clone()
    for var, func in kernels.items():
        hidden.update_func(var, without_body(func))
    result = relax.transform.RewriteDataflowReshape()(hidden)
    for var, func in kernels.items():
        result.update_func(result.get_global_var(var.name_hint), func)
    return result


def without_body(func: Any) -> Any:
    """A PrimFunc of the same parameters of which no pass can tell what it computes."""
    return func.with_body(_nothing())


def _is_without_blocks(func: Any) -> bool:
    return isinstance(func, tirx.PrimFunc) and not isinstance(func.body, SBlockRealize)


def _nothing() -> Any:
    return SBlockRealize([], True, SBlock([], [], [], "root", tirx.Evaluate(0)))
