"""Stores past the caches: what is larger than they are need not be read before it is overwritten.

A line that is stored to in part is read from memory first. A whole one, stored with `!nontemporal`, is not: two thirds
of a copy's traffic are left. TVM has no such store, so a function of LLVM's text, which is inlined, makes it where the
address allows (a caller's array need not begin on a line) and an ordinary one elsewhere.

Such stores are ordered by the next locked instruction of the thread that made them. TVM's pool has one between the
work of every thread and the return of the call that waits for it.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

ATTRIBUTE = "subtune.streamed"
"""Of a PrimFunc: its outputs are stored past the caches."""

_MARK = "subtune_streamed_"
_LINE = 64
_LLVM = {"float32": ("float", 4), "int32": ("i32", 4), "uint16": ("i16", 2), "int8": ("i8", 1), "uint8": ("i8", 1)}


def streamed(func: PrimFunc) -> PrimFunc:
    return func.with_attr(ATTRIBUTE, True)


def is_streamed(func: PrimFunc) -> bool:
    return bool(func.attrs and func.attrs.get(ATTRIBUTE))


def marked(func: PrimFunc, param: Any) -> str:
    """The name of a parameter's buffer, by which `stream_outputs` knows those that are written."""
    if not is_streamed(func) or not any(param.same_as(one) for one in _written(func)):
        return str(param.name)
    return f"{_MARK}{param.name}"


def stream_outputs(func: PrimFunc) -> PrimFunc:
    """Lowered TIR with its vector stores to marked buffers as stores past the caches."""
    used: set[tuple[str, int]] = set()

    def replace(store: tirx.BufferStore) -> Any:
        dtype, lanes = _vector(store.value)
        index = store.indices[-1] if len(store.indices) == 1 else None
        if not store.buffer.name.startswith(_MARK) or not isinstance(index, tirx.Ramp) or dtype not in _LLVM:
            return store
        if lanes * _LLVM[dtype][1] not in (_LINE, _LINE // 2, _LINE // 4) or not _is_one(index.stride):
            return store
        used.add((dtype, lanes))
        at = tirx.address_of(tirx.BufferLoad(store.buffer, [index.base]))
        return tirx.Evaluate(tirx.call_extern("int32", _name(dtype, lanes), at, store.value))

    body = tvm_ffi.structural_map(func.body, (tirx.BufferStore, replace))
    if not used:
        return func
    text = "\n".join([*(_definition(dtype, lanes) for dtype, lanes in sorted(used)), "!0 = !{i32 1}"])
    return func.with_body(tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", ir.StringImm(text), body))


def _written(func: PrimFunc) -> list[Any]:
    stores: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, lambda store: stores.append(store.buffer)))
    return stores


def _vector(value: Any) -> tuple[str, int]:
    name, _, lanes = str(value.ty.dtype).partition("x")
    return name, int(lanes or 1)


def _is_one(value: Any) -> bool:
    return isinstance(value, tirx.IntImm) and int(value) == 1


def _name(dtype: str, lanes: int) -> str:
    return f"subtune_stream_{dtype}x{lanes}"


def _definition(dtype: str, lanes: int) -> str:
    element, nbytes = _LLVM[dtype]
    vector, width = f"<{lanes} x {element}>", lanes * nbytes
    return f"""define i32 @{_name(dtype, lanes)}(ptr %at, {vector} %value) {{
  %address = ptrtoint ptr %at to i64
  %low = and i64 %address, {width - 1}
  %whole = icmp eq i64 %low, 0
  br i1 %whole, label %past, label %through
past:
  store {vector} %value, ptr %at, align {width}, !nontemporal !0
  ret i32 0
through:
  store {vector} %value, ptr %at, align {nbytes}
  ret i32 0
}}"""
