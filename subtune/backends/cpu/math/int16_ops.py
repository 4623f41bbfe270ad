"""Products of int16 by AVX512-VNNI, and sums that wrap round, as TIR operators that vectorise.

    pair_dot(c, a, b): int32     c + a[0] b[0] + a[1] b[1]; two int16 in each of `a` and `b`, the first in the low half
    wrap_add(a, b), wrap_mul(a, b): int32     modulo 2^32

TVM tells LLVM that its own sums of int32 never overflow, and LLVM may build on that. `vpdpwssd` wraps round.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import inside_root
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

FEATURE = "avx512vnni"
"""The processor feature, in LLVM's spelling, without which `pair_dot` cannot be lowered."""

_DOT, _ADD, _MUL = (f"tirx.subtune_{name}" for name in ("pair_dot", "wrap_add", "wrap_mul"))

_DOT_IR = """
declare <16 x i32> @llvm.x86.avx512.vpdpwssd.512(<16 x i32>, <32 x i16>, <32 x i16>)
define <16 x i32> @subtune_pair_dot_16(<16 x i32> %c, <16 x i32> %a, <16 x i32> %b) {
  %x = bitcast <16 x i32> %a to <32 x i16>
  %y = bitcast <16 x i32> %b to <32 x i16>
  %r = call <16 x i32> @llvm.x86.avx512.vpdpwssd.512(<16 x i32> %c, <32 x i16> %x, <32 x i16> %y)
  ret <16 x i32> %r
}
"""
_WRAP_IR = """
define <16 x i32> @subtune_wrap_{op}_16(<16 x i32> %a, <16 x i32> %b) {{
  %r = {op} <16 x i32> %a, %b
  ret <16 x i32> %r
}}
"""
_TEXTS = {_DOT: _DOT_IR, _ADD: _WRAP_IR.format(op="add"), _MUL: _WRAP_IR.format(op="mul")}


def pair_dot(c: Any, a: Any, b: Any) -> Any:
    return ir.Call(ir.Op.get(_DOT), [c, a, b], ret_ty=ir.PrimType("int32"))


def wrap_add(a: Any, b: Any) -> Any:
    return ir.Call(ir.Op.get(_ADD), [a, b], ret_ty=ir.PrimType("int32"))


def wrap_mul(a: Any, b: Any) -> Any:
    return ir.Call(ir.Op.get(_MUL), [a, b], ret_ty=ir.PrimType("int32"))


def with_int16_ops(func: PrimFunc) -> PrimFunc:
    """`func` with the LLVM functions that these operators call, of vectors of 16; unchanged where it has none."""
    used = set()

    def call(node: Any) -> None:
        if isinstance(node.op, ir.Op) and node.op.name in _TEXTS:
            used.add(node.op.name)

    tvm_ffi.structural_walk(func.body, (ir.Call, call))
    text = "".join(text for name, text in _TEXTS.items() if name in used)
    return func.with_body(inside_root(func.body, text)) if text else func


def _lower(call: Any) -> Any:
    return tirx.call_pure_extern(str(call.ty), f"{call.op.name.removeprefix('tirx.')}_{lanes_of(call)}", *call.args)


for _name in _TEXTS:
    register(_name, _lower)
