"""What the replacements of functions on a GPU have in common: which kernels they are for, and their text above them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.tirx import PrimFunc

from subtune.core.workload import dtype_bits

_NARROW_BITS = 16


def stores_narrow(func: PrimFunc) -> bool:
    """Whether what the function writes to the device's memory has at most 16 bits an element."""
    bits: list[int] = []

    def stored(store: Any) -> None:
        if str(store.buffer.scope()) in ("global", ""):
            bits.append(dtype_bits(str(store.buffer.dtype)))

    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, stored))
    return bool(bits) and max(bits) <= _NARROW_BITS


def with_source(func: PrimFunc, body: Any, name: str, source: str) -> PrimFunc:
    """`func` with another body, and `source` in CUDA C++ above it, which defines a function `name` that does nothing:
    TVM writes a text where something of it is called."""
    from tvm.backend.cuda.op import cuda_func_call

    return func.with_body(tirx.SeqStmt([tirx.Evaluate(cuda_func_call(name, source_code=source)), body]))
