"""Calls of functions that are written in CUDA C++, and the addresses that they are given."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx


def called(name: str, arguments: Sequence[Any], source: str) -> tirx.Evaluate:
    """The statement `name(arguments)` of a function in CUDA C++; integers are passed in 32 bits."""
    from tvm.backend.cuda.op import cuda_func_call

    narrow = [x.astype("int32") if str(getattr(x.ty, "dtype", "")) == "int64" else x for x in arguments]
    return tirx.Evaluate(cuda_func_call(name, *narrow, source_code=source))


def address(buffer: Any, index: Any) -> Any:
    """Of element `index` of `buffer`, counted over all dims.

    TVM makes an allocation as small as what it sees: a function that is given the address of the first element of a
    buffer of the kernel's own must be given `end` as well.
    """
    zeros = [tirx.const(0, "int64")] * (len(buffer.shape) - 1)
    return tirx.address_of(tirx.BufferLoad(buffer, [*zeros, index]))


def end(buffer: Any) -> Any:
    """The address of the last element of `buffer`."""
    return address(buffer, tirx.const(prod(int(d) for d in buffer.shape) - 1, "int64"))
