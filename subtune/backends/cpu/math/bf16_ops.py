"""The two bfloat16 instructions of AVX512-BF16 as TIR operators that vectorise, and how they become machine code.

TVM 0.27 has no bfloat16 in its LLVM back end: values are stored as uint16 and rounded with five integer instructions,
and an intrinsic whose operands are bfloat16 vectors cannot be called. So a kernel that needs them carries a few lines
of LLVM IR (`pragma_import_llvm`) whose functions take integers; LLVM inlines them.

    bf16_dot(c, a, b): float32     c + a[0] * b[0] + a[1] * b[1]; `a`, `b` are int32 that hold two bfloat16 each
    bf16_round(x): uint16          the bits of x rounded to bfloat16, to nearest, ties to even

`vdpbf16ps` rounds to nearest even whatever the mode, takes denormals for zero and flushes results that are denormal.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import inside_root
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

DOT = "tirx.subtune_bf16_dot"
ROUND = "tirx.subtune_bf16_round"
FEATURE = "avx512bf16"
"""The processor feature, in LLVM's spelling, without which neither operator can be lowered."""

DOT_LANES = 16

_DOT_IR = """
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define <16 x float> @subtune_bf16_dot_16(<16 x float> %c, <16 x i32> %a, <16 x i32> %b) {
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %c, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}
"""

_ROUND_IR = """
define linkonce_odr hidden {bits} @subtune_bf16_round_{lanes}({floats} %x) alwaysinline {{
  %y = fptrunc {floats} %x to {halves}
  %r = bitcast {halves} %y to {bits}
  ret {bits} %r
}}
"""


def dot(c: Any, a: Any, b: Any) -> Any:
    """`c` float32, `a` and `b` int32: pairs of bfloat16, the first in the low half."""
    return ir.Call(ir.Op.get(DOT), [c, a, b], ret_ty=ir.PrimType("float32"))


def rounded(x: Any) -> Any:
    """The bits, as uint16, of the float32 `x` rounded to bfloat16."""
    return ir.Call(ir.Op.get(ROUND), [x], ret_ty=ir.PrimType("uint16"))


def with_instructions(func: PrimFunc) -> PrimFunc:
    """`func` with the LLVM functions that its operators call; unchanged when it uses none of them."""
    used = set()
    lanes = {1}

    def call(node: Any) -> None:
        if isinstance(node.op, ir.Op) and node.op.name in (DOT, ROUND):
            used.add(node.op.name)

    def loop(node: Any) -> None:
        if int(node.kind) == int(tirx.ForKind.VECTORIZED) and isinstance(node.extent, tirx.IntImm):
            lanes.add(int(node.extent))

    tvm_ffi.structural_walk(func.body, [(ir.Call, call), (tirx.For, loop)])
    if not used:
        return func
    widths = range(1, max(lanes) + 1) if ROUND in used else ()  # where columns are ragged, a vector has what is left
    text = (_DOT_IR if DOT in used else "") + "".join(map(_round_ir, widths))
    return func.with_body(inside_root(func.body, text))


def _round_ir(lanes: int) -> str:
    if lanes == 1:
        return _ROUND_IR.format(lanes=1, bits="i16", floats="float", halves="bfloat")
    return _ROUND_IR.format(
        lanes=lanes, bits=f"<{lanes} x i16>", floats=f"<{lanes} x float>", halves=f"<{lanes} x bfloat>"
    )


def _lower(name: str) -> Any:
    def rule(call: Any) -> Any:
        return tirx.call_pure_extern(str(call.ty), f"{name}_{lanes_of(call)}", *call.args)

    return rule


register(DOT, _lower("subtune_bf16_dot"))
register(ROUND, _lower("subtune_bf16_round"))
