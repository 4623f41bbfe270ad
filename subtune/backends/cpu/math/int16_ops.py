"""Products of int16, and sums that wrap round, as TIR operators that vectorise.

    pair_dot(c, a, b): int32     c + a[0] b[0] + a[1] b[1]; two int16 in each of `a` and `b`, the first in the low half
    wrap_add(a, b), wrap_mul(a, b): int32     modulo 2^32

TVM tells LLVM that its own sums of int32 never overflow, and LLVM may build on that. `vpdpwssd` wraps round, and
products of int16 of which neither is -32768 twice fit `vpmaddwd`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.llvm_text import inside_root
from subtune.tir.operators import register
from subtune.tir.shuffle import lanes_of

_DOT, _ADD, _MUL = (f"tirx.subtune_{name}" for name in ("pair_dot", "wrap_add", "wrap_mul"))


@dataclass(frozen=True, slots=True)
class PairDot:
    """How processors with a `feature`, in LLVM's spelling, do `pair_dot` in vectors of so many lanes.

    `cost`: of one, in what a multiply-add of as many float32 takes.
    """

    lanes: int
    feature: str
    cost: float
    intrinsic: str
    adds: bool
    """Whether the instruction adds to an accumulator."""

    @property
    def text(self) -> str:
        words, halves = f"<{self.lanes} x i32>", f"<{2 * self.lanes} x i16>"
        call = f"call {words} @{self.intrinsic}({f'{words} %c, ' if self.adds else ''}{halves} %x, {halves} %y)"
        total = f"  %r = {call}" if self.adds else f"  %products = {call}\n  %r = add {words} %c, %products"
        return f"""
declare {words} @{self.intrinsic}({f"{words}, " if self.adds else ""}{halves}, {halves})
define {words} @subtune_pair_dot_{self.lanes}({words} %c, {words} %a, {words} %b) alwaysinline {{
  %x = bitcast {words} %a to {halves}
  %y = bitcast {words} %b to {halves}
{total}
  ret {words} %r
}}
"""


_PAIR_DOTS = (
    PairDot(16, "avx512vnni", 1.0, "llvm.x86.avx512.vpdpwssd.512", True),
    PairDot(8, "avxvnni", 1.0, "llvm.x86.avx512.vpdpwssd.256", True),
    PairDot(16, "avx512bw", 2.0, "llvm.x86.avx512.pmaddw.d.512", False),
    PairDot(8, "avx2", 1.3, "llvm.x86.avx2.pmadd.wd", False),
    PairDot(4, "sse4.2", 1.3, "llvm.x86.sse2.pmadd.wd", False),
)
"""The first that a processor has is its best. `pmadd` and an addition: two instructions of 512 bits start in a cycle,
or three narrower ones, as those of bytes (`byte_dots`)."""


def pair_dots(features: Collection[str], lanes: int) -> PairDot | None:
    """What a processor with these features has for vectors of so many int32."""
    return next((dot for dot in _PAIR_DOTS if dot.lanes == lanes and dot.feature in features), None)


def _wrapping(operator: str, lanes: int) -> str:
    words = f"<{lanes} x i32>"
    return f"""
define {words} @subtune_wrap_{operator}_{lanes}({words} %a, {words} %b) alwaysinline {{
  %r = {operator} {words} %a, %b
  ret {words} %r
}}
"""


def pair_dot(c: Any, a: Any, b: Any) -> Any:
    return ir.Call(ir.Op.get(_DOT), [c, a, b], ret_ty=ir.PrimType("int32"))


def wrap_add(a: Any, b: Any) -> Any:
    return ir.Call(ir.Op.get(_ADD), [a, b], ret_ty=ir.PrimType("int32"))


def wrap_mul(a: Any, b: Any) -> Any:
    return ir.Call(ir.Op.get(_MUL), [a, b], ret_ty=ir.PrimType("int32"))


def with_int16_ops(func: PrimFunc, dot: PairDot) -> PrimFunc:
    """`func`, which uses all of these operators in vectors of `dot.lanes`, with the LLVM functions that they call."""
    text = dot.text + "".join(_wrapping(operator, dot.lanes) for operator in ("add", "mul"))
    return func.with_body(inside_root(func.body, text))


def _lower(call: Any) -> Any:
    return tirx.call_pure_extern(str(call.ty), f"{call.op.name.removeprefix('tirx.')}_{lanes_of(call)}", *call.args)


for _name in (_DOT, _ADD, _MUL):
    register(_name, _lower)
