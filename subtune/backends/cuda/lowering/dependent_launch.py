"""Kernels that start while the one before them ends: programmatic dependent launch, from sm_90 on.

Between two kernels that follow one another a GPU drains the first, starts the second's blocks and fetches its code:
about a microsecond, which is a third of a small model. A kernel made here lets the next one start as soon as all of its
own blocks run, and before it touches global memory it waits until the one before it has finished and all it wrote can
be seen. So a kernel that waits for one waits for all before it.

Sources: CUDA programming guide, programmatic dependent launch; PTX ISA, griddepcontrol.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext
from tvm.script import tirx as T

_PARAMS = "tirx.kernel_launch_params"
_TAG = "tirx.use_programtic_dependent_launch"  # TVM's spelling
_FIRST_ARCH = 90


@tvm.transform.module_pass(opt_level=0, name="subtune.StartEarly")  # type: ignore[untyped-decorator]
def start_early(mod: IRModule, _context: PassContext) -> IRModule:
    """Run before host and device are split: kernels will be launched so."""
    return _with_kernels(mod, lambda func: func.with_attr(_PARAMS, [_TAG]) if _has_instruction(func) else func)


@tvm.transform.module_pass(opt_level=0, name="subtune.WaitForPrevious")  # type: ignore[untyped-decorator]
def wait_for_previous(mod: IRModule, _context: PassContext) -> IRModule:
    """Run on kernels: the two instructions, first of all where the kernel does not have them in a better place."""

    def waiting(func: Any) -> Any:
        if _TAG not in (func.attrs.get(_PARAMS) or ()) or _waits(func.body):
            return func
        steps = T.ptx.griddepcontrol.launch_dependents(), T.ptx.griddepcontrol.wait()
        return func.with_body(tirx.SeqStmt([*map(tirx.Evaluate, steps), func.body]))

    return _with_kernels(mod, waiting)


def _with_kernels(mod: IRModule, change: Any) -> IRModule:
    changed = mod.clone()
    for name, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            changed.update_func(name, change(func))
    return changed


def _has_instruction(func: Any) -> bool:
    target = func.attrs.get("target") if func.attrs else None
    digits = str(target.attrs.get("arch", "")).removeprefix("sm_").rstrip("af") if target else ""
    return digits.isdigit() and int(digits) >= _FIRST_ARCH


def _waits(body: Any) -> bool:
    found = False

    def look(call: Any) -> None:
        nonlocal found
        found = found or str(getattr(call.op, "name", "")) == "tirx.ptx.griddepcontrol"

    tvm_ffi.structural_walk(body, (tvm.ir.Call, look), order="post")
    return found
