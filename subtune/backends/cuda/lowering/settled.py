"""What is left to do of a dynamic kernel's numbers, which TVM counts with in 32 bits: see `dynamic.template`."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.sym.analyzer import Analyzer
from tvm.tirx import PrimFunc

from subtune.core.variants import GREATEST
from subtune.tir.substitute import substitute


def settled(func: PrimFunc) -> PrimFunc:
    """A flat kernel with its numbers in 64 bits, without their bounds, and with buffers that do for any instance."""
    if not func.attrs or GREATEST not in func.attrs:
        return func
    values = at_greatest(func)
    numbers, buffers = list(values), list(func.params)[len(values) :]
    wide = [tirx.Var(var.name, "int64") for var in numbers]
    large = {buffer: _large_enough(buffer, values) for buffer in buffers}

    def look(named: Any) -> None:
        buffer = named.buffer
        if not all(isinstance(extent, tirx.IntImm) for extent in buffer.shape):
            large[buffer] = _large_enough(buffer, values)

    tvm_ffi.structural_walk(func.body, [(tirx.AllocBuffer, look), (tirx.DeclBuffer, look)])
    body = tvm_ffi.structural_map(substitute(func.body, large), (tirx.FloorMod, lambda one: _unbounded(one, numbers)))
    binds = [tirx.Bind(short, var.astype("int32")) for short, var in zip(numbers, wide, strict=True)]
    params = [*wide, *(large[buffer] for buffer in buffers)]
    return PrimFunc(params, tirx.SeqStmt([*binds, body]), func.ret_type, func.attrs)


def at_greatest(func: PrimFunc) -> dict[Any, Any]:
    """A kernel for many shapes: its leading parameters, and what they are at its greatest instance; of others none."""
    most = func.attrs.get(GREATEST, ()) if func.attrs else ()
    return {var: tirx.const(int(value), var.ty.dtype) for var, value in zip(func.params, most, strict=False)}


def _unbounded(rest: Any, numbers: Any) -> Any:
    number = rest.a.value if isinstance(rest.a, tirx.Cast) else rest.a
    return rest.a if any(number.same_as(var) for var in numbers) else rest


def _large_enough(buffer: Any, values: dict[Any, Any]) -> Any:
    """A buffer as large as this one is at the largest instance."""
    analyzer = Analyzer()
    shape = [analyzer.simplify(substitute(extent, values)) for extent in buffer.shape]
    return tirx.decl_buffer(
        shape, buffer.dtype, buffer.name, scope=buffer.scope(), data_alignment=buffer.data_alignment
    )
