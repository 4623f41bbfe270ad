"""What floats the sixteen values of four bits stand for, as a TIR operator: a table that is one vector register.

    nibble_float(word, point): float32      (word & 15) - point, for a constant integer `point`

AVX-512's `vpermps` reads the low four bits of every lane of its indices, and no others, so that no mask is needed.
"""

from __future__ import annotations

import struct
from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import where_called
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

LANES, FEATURE = 16, "avx512f"
"""Vectors of so many lanes can be looked up, on processors that have the feature, in LLVM's spelling."""
_OPERATOR = "tirx.subtune_nibble_float"
_IR = """
declare <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float>, <16 x i32>)
define <16 x float> @{name}(<16 x i32> %word) alwaysinline {{
  %r = call <16 x float> @llvm.x86.avx512.permvar.sf.512(<16 x float> <{table}>, <16 x i32> %word)
  ret <16 x float> %r
}}
"""


def nibble_float(word: Any, point: int) -> Any:
    """Of the low four bits of `word`, uint32; exact."""
    return ir.Call(ir.Op.get(_OPERATOR), [word, tirx.const(point, "int32")], ret_ty=ir.PrimType("float32"))


def with_nibble_table(func: PrimFunc, point: int) -> PrimFunc:
    """`func` with the LLVM function that the operator calls for this `point`; unchanged where it does not."""
    table = ", ".join(f"float {_hexadecimal(float(value - point))}" for value in range(16))
    return where_called(func, _OPERATOR, _IR.format(name=_name(point), table=table))


def _name(point: int) -> str:
    return f"subtune_nibble_float_{point}".replace("-", "minus_")


def _hexadecimal(value: float) -> str:
    """As LLVM spells a number: the bits of float64."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _lower(call: Any) -> Any:
    word, point = call.args
    point = point.value if isinstance(point, tirx.Broadcast) else point
    assert lanes_of(call) == LANES, f"{lanes_of(call)} lanes of a table of {LANES}"
    return tirx.call_pure_extern(str(call.ty), _name(int(point)), word)


register(_OPERATOR, _lower)
