"""The product of two words of four bytes as a TIR operator that vectorises, and how it becomes machine code.

    byte_dot(c, a, b): int32            c + a[0] b[0] + a[1] b[1] + a[2] b[2] + a[3] b[3]; uint8 in `a`, int8 in `b`
    signed_byte_dot(c, a, b): int32     the same with int8 in `a`

The instructions are those of `byte_dots`. TVM's own intrinsic for AVX512-VNNI fails the verifier of the LLVM that it
brings, whose `vpdpbusd` takes bytes (apache-tvm 0.27.0.post1).
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.byte_dots import ByteDot, function_name
from subtune.backends.cpu.math.llvm_text import where_called
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

_OPERATORS = {"uint8": "tirx.subtune_byte_dot", "int8": "tirx.subtune_signed_byte_dot"}


def dot(c: Any, a: Any, b: Any) -> Any:
    """All int32; `a` holds four uint8, `b` four int8, the first in the lowest bits."""
    return _called("uint8", c, a, b)


def signed_dot(c: Any, a: Any, b: Any) -> Any:
    """The same where `a` holds four int8."""
    return _called("int8", c, a, b)


def with_byte_dot(func: PrimFunc, instruction: ByteDot) -> PrimFunc:
    """`func` with the LLVM function that the operator of the instruction's types calls; unchanged without any."""
    return where_called(func, _OPERATORS[instruction.rows], instruction.text)


def _called(rows: str, *args: Any) -> Any:
    return ir.Call(ir.Op.get(_OPERATORS[rows]), list(args), ret_ty=ir.PrimType("int32"))


def _lower(rows: str) -> Any:
    return lambda call: tirx.call_pure_extern(str(call.ty), function_name(rows, lanes_of(call)), *call.args)


for _rows, _name in _OPERATORS.items():
    register(_name, _lower(_rows))
