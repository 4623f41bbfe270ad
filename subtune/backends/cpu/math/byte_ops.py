"""The products of bytes of AVX512-VNNI as a TIR operator that vectorises, and how it becomes machine code.

    byte_dot(c, a, b): int32     c + a[0] b[0] + a[1] b[1] + a[2] b[2] + a[3] b[3]; four uint8 in `a`, four int8 in `b`

TVM's own intrinsic fails the verifier of the LLVM that it brings, whose `vpdpbusd` takes bytes (apache-tvm
0.27.0.post1).
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import where_called
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

DOT = "tirx.subtune_byte_dot"
FEATURE = "avx512vnni"
"""The processor feature, in LLVM's spelling, without which the operator cannot be lowered."""

_DOT_IR = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
define <16 x i32> @subtune_byte_dot_16(<16 x i32> %c, <16 x i32> %a, <16 x i32> %b) {
  %x = bitcast <16 x i32> %a to <64 x i8>
  %y = bitcast <16 x i32> %b to <64 x i8>
  %r = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %c, <64 x i8> %x, <64 x i8> %y)
  ret <16 x i32> %r
}
"""


def dot(c: Any, a: Any, b: Any) -> Any:
    """All int32; `a` holds four uint8, `b` four int8, the first in the lowest bits."""
    return ir.Call(ir.Op.get(DOT), [c, a, b], ret_ty=ir.PrimType("int32"))


def with_byte_dot(func: PrimFunc) -> PrimFunc:
    """`func` with the LLVM function that the operator calls; unchanged when it is not used."""
    return where_called(func, DOT, _DOT_IR)


def _lower(call: Any) -> Any:
    return tirx.call_pure_extern(str(call.ty), f"subtune_byte_dot_{lanes_of(call)}", *call.args)


register(DOT, _lower)
