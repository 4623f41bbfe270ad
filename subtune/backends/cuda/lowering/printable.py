"""Vectors that TVM prints as CUDA no compiler takes, as others that mean the same (apache-tvm 0.27.0.post1).

broadcast(0, int8x16)        ->  reinterpret(int8x16, broadcast(0, int32x4))     it prints make_int4 of 16 bytes
cast(float32x2, condition)   ->  select(condition, 1, 0)                         a condition is printed as ushort2
mask[ramp(i, 1, 4)]          ->  bytes[ramp(i, 1, 4)] != 0                       and is loaded, two bytes to an element,
mask[ramp(i, 1, 4)] = c      ->  bytes[ramp(i, 1, 4)] = select(c, 1, 0)          and stored as that
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import IRModule
from tvm.ir.transform import PassContext

from subtune.tir.substitute import substitute

_WORD = 4
_BYTE = "uint8"


@tvm.transform.module_pass(opt_level=0, name="subtune.Printable")  # type: ignore[untyped-decorator]
def printable(mod: IRModule, _context: PassContext) -> IRModule:
    """Run on what is about to be printed."""
    result = tvm.IRModule({}, attrs=mod.attrs)
    for var, func in mod.functions_items():
        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, (tirx.Broadcast, _words))
            body = tvm_ffi.structural_map(body, (tirx.Cast, _selected))
            func = func.with_body(_bytes_for_booleans(body))
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
    return _zeros_and_ones(cast.value, dtype.partition("x")[0])


def _zeros_and_ones(condition: Any, dtype: str) -> tirx.Select:
    one, zero = (_like(condition, value, dtype) for value in (1, 0))
    return tirx.Select(condition, one, zero)


def _like(condition: Any, value: int, dtype: str) -> Any:
    """`value` in as many lanes as a condition has."""
    lanes = str(condition.ty).partition("x")[2]
    number = tirx.const(value, dtype)
    return tirx.Broadcast(number, int(lanes)) if lanes else number


def _bytes_for_booleans(body: Any) -> Any:
    """Buffers of booleans that are accessed as vectors, as buffers of bytes."""
    twins: dict[Any, Any] = {}

    def note(buffer: Any, element: Any) -> None:
        if str(element.ty).startswith("boolx") and buffer not in twins:
            dtype = str(buffer.dtype).replace("bool", _BYTE)
            twins[buffer] = tirx.decl_buffer(list(buffer.shape), dtype, buffer.name, scope=buffer.scope())

    def loaded(load: ir.TensorLoad) -> Any:
        if load.source not in twins:
            return load
        found = tirx.BufferLoad(twins[load.source], list(load.indices))
        return tirx.NE(found, _like(load, 0, _BYTE))

    def stored(store: tirx.BufferStore) -> Any:
        if store.buffer not in twins:
            return store
        return tirx.BufferStore(twins[store.buffer], _zeros_and_ones(store.value, _BYTE), list(store.indices))

    tvm_ffi.structural_walk(body, (ir.TensorLoad, lambda load: note(load.source, load)), order="post")
    tvm_ffi.structural_walk(body, (tirx.BufferStore, lambda store: note(store.buffer, store.value)), order="post")
    if not twins:
        return body
    body = tvm_ffi.structural_map(body, [(ir.TensorLoad, loaded), (tirx.BufferStore, stored)])
    return substitute(body, twins)
