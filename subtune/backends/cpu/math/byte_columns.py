"""Bytes of four vectors, one beside the other: words of 32 bits that AVX512-VNNI multiplies.

    byte_columns(a, b, c, d): int32     a | b << 8 | c << 16 | d << 24, all uint8

Sixteen words are four loads of 16 bytes into one register and one permutation of its bytes (AVX512-VBMI), where LLVM
would widen, shift and unite them.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import where_called
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

COLUMNS = "tirx.subtune_byte_columns"
FEATURE = "avx512vbmi"
"""The processor feature, in LLVM's spelling, without which this is no single instruction."""
_LANES = 16
_TURNED = ", ".join(f"i32 {column * _LANES + lane}" for lane in range(_LANES) for column in range(4))
_JOINED = [", ".join(f"i32 {i}" for i in range(count)) for count in (32, 64)]
_IR = f"""
define <16 x i32> @subtune_byte_columns_16(<16 x i8> %a, <16 x i8> %b, <16 x i8> %c, <16 x i8> %d) alwaysinline {{
  %ab = shufflevector <16 x i8> %a, <16 x i8> %b, <32 x i32> <{_JOINED[0]}>
  %cd = shufflevector <16 x i8> %c, <16 x i8> %d, <32 x i32> <{_JOINED[0]}>
  %all = shufflevector <32 x i8> %ab, <32 x i8> %cd, <64 x i32> <{_JOINED[1]}>
  %turned = shufflevector <64 x i8> %all, <64 x i8> poison, <64 x i32> <{_TURNED}>
  %words = bitcast <64 x i8> %turned to <16 x i32>
  ret <16 x i32> %words
}}
"""


def byte_columns(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Words of the bytes of four operands, `a` in the lowest bits."""
    return ir.Call(ir.Op.get(COLUMNS), [a, b, c, d], ret_ty=ir.PrimType("int32"))


def with_byte_columns(func: PrimFunc) -> PrimFunc:
    """`func` with the LLVM function that the operator calls; unchanged when it is not used."""
    return where_called(func, COLUMNS, _IR)


def _lower(call: Any) -> Any:
    assert lanes_of(call) == _LANES, "families make vectors of sixteen words"
    return tirx.call_pure_extern(str(call.ty), "subtune_byte_columns_16", *call.args)


register(COLUMNS, _lower)
