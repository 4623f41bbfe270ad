"""Kernels lowered as far as dynamic shapes compare them: loops over flat buffers, launches with numbers of blocks.

What comes after is the same for all: how a kernel starts, host and device apart, a packed call's arguments.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.tirx import PrimFunc

from subtune.backends.cuda.lowering.dependent_launch import start_early

FLAT = "subtune.flat"
"""Attribute of a PrimFunc that has been lowered already, save for its parameters: nothing asserts their shapes."""
HOST = "subtune.host"
"""Attribute of a PrimFunc that launches nothing itself and calls others that do."""


def with_host(target: Any) -> Any:
    """The target with the one of its host, as TVM chooses it where there is none."""
    return target if target.host is not None else target.with_host(tvm.target.Target("llvm"))


def packing_passes() -> tuple[Any, ...]:
    """The last of TVM's passes: from here on parameters are a packed call's arguments."""
    x = tirx.transform
    return x.MakePackedAPI(), _trusting, x.FP8StorageLegalize(), x.BF16StorageLegalize()


def lower_flat(flat: IRModule, host: IRModule) -> IRModule:
    """Functions with `FLAT`, and those with `HOST` that call them, to host and device functions.

    Those without a global symbol take addresses, and stay functions of the host's code.
    """
    mod = tvm.ir.transform.Sequential([start_early, tirx.transform.SplitHostDevice(), _on_host])(flat)
    mod.update(host)  # not before: a call from one target to another would be a launch
    return tvm.ir.transform.Sequential(packing_passes())(mod)


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _on_host(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
    if not func.attrs or FLAT not in func.attrs or "global_symbol" in func.attrs:
        return func
    return func.with_attr("target", func.attrs["target"].host)


@tirx.transform.prim_func_pass(opt_level=0)  # type: ignore[untyped-decorator]
def _trusting(func: PrimFunc, _mod: IRModule, _ctx: PassContext) -> PrimFunc:
    """Kernels of dynamic shapes are called on what is checked or made before; their buffers are the greatest's."""
    if not func.attrs or FLAT not in func.attrs:
        return func
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.AssertStmt, lambda _: nothing)))
