"""Vectors that TVM prints as CUDA no compiler takes, as others that mean the same (apache-tvm 0.27.0.post1).

broadcast(0, int8x16)        ->  reinterpret(int8x16, broadcast(0, int32x4))     it prints make_int4 of 16 bytes
cast(float32x2, condition)   ->  select(condition, 1, 0)                         a condition is printed as ushort2
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

_WORD = 4


@tvm.transform.module_pass(opt_level=0, name="subtune.Printable")  # type: ignore[untyped-decorator]
def printable(mod: Any, _context: Any) -> Any:
    """Run on what is about to be printed."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, (tirx.Broadcast, _words))
            func = func.with_body(tvm_ffi.structural_map(body, (tirx.Cast, _selected)))
        result[var] = func
    return result


def _words(vector: Any) -> Any:
    """What is filled into a tile of bytes beyond a matrix's end, for one."""
    dtype, lanes = str(vector.value.ty), int(vector.lanes)
    if dtype not in ("int8", "uint8") or lanes not in (8, 16) or not isinstance(vector.value, tirx.IntImm):
        return vector
    word = int.from_bytes([int(vector.value) & 0xFF] * _WORD, "little", signed=True)
    return tirx.reinterpret(f"{dtype}x{lanes}", tirx.Broadcast(tirx.const(word, "int32"), lanes // _WORD))


def _selected(cast: Any) -> Any:
    source, dtype = str(cast.value.ty), str(cast.ty)
    if not source.startswith("bool") or "x" not in dtype or dtype.startswith("bool"):
        return cast
    scalar, _, lanes = dtype.partition("x")
    one, zero = (tirx.Broadcast(tirx.const(value, scalar), int(lanes)) for value in (1, 0))
    return tirx.Select(cast.value, one, zero)
