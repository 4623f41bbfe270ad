"""Instructions that multiply words of four bytes and add to int32, of several processors, as LLVM functions.

    c + a[0] b[0] + a[1] b[1] + a[2] b[2] + a[3] b[3]         `a` uint8 or int8, `b` int8, in every lane of a vector

All of them are exact modulo 2**32: none saturates. Where an instruction wants the first operand otherwise, its sign
bits are turned, and 128 times the sum of `b` corrects that:

    a uint8, as int8:     c + (a - 128) b + 128 b             a int8, as uint8:     c + (a + 128) b - 128 b

The correction is one more product of `b` alone, which LLVM takes out of the loop over rows. AVX2's own product of bytes
(`vpmaddubsw`) saturates at int16, which 255 * 127 + 255 * 127 exceeds. So bytes at even places, and those at odd ones,
are widened to int16 in place, by shifts, and `vpmaddwd` adds pairs of products of those in int32.
Sources: Intel, Software Developer's Manual, 325383; Arm, Architecture Reference Manual, DDI 0487.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ByteDot:
    """A product of words on processors of one kind.

    Attributes:
        rows: type of the first operand.
        lanes: words in a vector.
        feature: of the processor, in LLVM's spelling, without which there is no such instruction; `extension` is it in
            the processor's manual.
        cost: of one product, in what a multiply-add of as many float32 takes.
        registers: that intermediate values take beside those of the operands and sums.
        text: of the LLVM function `name`.
    """

    rows: str
    lanes: int
    feature: str
    extension: str
    cost: float
    registers: int
    text: str


def function_name(rows: str, lanes: int) -> str:
    """Of the LLVM function for first operands of type `rows`."""
    return f"subtune_{'signed_' if rows == 'int8' else ''}byte_dot_{lanes}"


def byte_dot(rows: str, features: Collection[str], lanes: int) -> ByteDot | None:
    """The best product that a processor with these features has for vectors of so many words."""
    found = (dot for dot in _DOTS if (dot.rows, dot.lanes) == (rows, lanes) and dot.feature in features)
    return min(found, key=lambda dot: dot.cost, default=None)


def cheapest_rows(features: Collection[str], lanes: int) -> str:
    """The type of first operands whose products cost less than the other's; "" where they cost the same."""
    unsigned, signed = (getattr(byte_dot(rows, features, lanes), "cost", 0.0) for rows in ("uint8", "int8"))
    return "" if unsigned == signed else "uint8" if unsigned < signed else "int8"


def bytes_per_multiply_add(features: Collection[str], lanes: int) -> float:
    """Products of bytes in the time of one of float32, of the types that suit the processor best; 1.0 where none do."""
    found = [byte_dot(rows, features, lanes) for rows in ("uint8", "int8")]
    return max([1.0, *(4 / dot.cost for dot in found if dot is not None)])


def _function(rows: str, lanes: int, declared: str, body: str) -> str:
    words = f"<{lanes} x i32>"
    head = f"define {words} @{function_name(rows, lanes)}({words} %c, {words} %a, {words} %b) alwaysinline"
    return f"\n{declared}\n{head} {{\n{body.strip(chr(10))}\n}}\n"


def _of_words(rows: str, lanes: int, intrinsic: str, wants: str) -> str:
    """Of an instruction that multiplies words of which the first holds bytes of type `wants`."""
    words, bits = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
    declared = f"declare {words} @{intrinsic}({words}, {bits}, {bits})"
    body = f"""
  %y = bitcast {words} %b to {bits}
"""
    if wants == rows:
        body += f"""  %x = bitcast {words} %a to {bits}
  %r = call {words} @{intrinsic}({words} %c, {bits} %x, {bits} %y)
"""
    else:  # -128 and 128 are the same bits: the product with them is that of the correction with its sign turned
        declared = f"{_SIGNS}\n{declared}"
        body += f"""  %sign = load i32, ptr @subtune_byte_signs, align 4
  %one = insertelement {words} poison, i32 %sign, i64 0
  %signs = shufflevector {words} %one, {words} poison, {words} zeroinitializer
  %turned = xor {words} %a, %signs
  %x = bitcast {words} %turned to {bits}
  %more = call {words} @{intrinsic}({words} zeroinitializer, {bits} splat (i8 -128), {bits} %y)
  %corrected = sub {words} %c, %more
  %r = call {words} @{intrinsic}({words} %corrected, {bits} %x, {bits} %y)
"""
    return _function(rows, lanes, declared, body + f"  ret {words} %r")


def _of_halves(rows: str, lanes: int, intrinsic: str) -> str:
    """Of an instruction that adds two products of int16 in int32."""
    words, halves = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    even = {
        "uint8": f"  %a_even = and {halves} %a_all, splat (i16 255)\n  %a_odd = lshr {halves} %a_all, splat (i16 8)",
        "int8": f"""  %a_high = shl {halves} %a_all, splat (i16 8)
  %a_even = ashr {halves} %a_high, splat (i16 8)
  %a_odd = ashr {halves} %a_all, splat (i16 8)""",
    }
    body = f"""
  %a_all = bitcast {words} %a to {halves}
  %b_all = bitcast {words} %b to {halves}
{even[rows]}
  %b_high = shl {halves} %b_all, splat (i16 8)
  %b_even = ashr {halves} %b_high, splat (i16 8)
  %b_odd = ashr {halves} %b_all, splat (i16 8)
  %first = call {words} @{intrinsic}({halves} %a_even, {halves} %b_even)
  %second = call {words} @{intrinsic}({halves} %a_odd, {halves} %b_odd)
  %both = add {words} %first, %second
  %r = add {words} %c, %both
  ret {words} %r"""
    return _function(rows, lanes, f"declare {words} @{intrinsic}({halves}, {halves})", body)


_SIGNS = f"@subtune_byte_signs = linkonce_odr hidden global i32 {-0x7F7F7F80}"
"""Of four bytes, no constant of the function: what LLVM 22 does to a broadcast word and a constant, where there is
AVX512-VL, does not end."""
_VNNI = (
    (16, "llvm.x86.avx512.vpdpbusd.512", "avx512vnni", "AVX512-VNNI"),
    (8, "llvm.x86.avx512.vpdpbusd.256", "avxvnni", "AVX-VNNI"),
)
_MADD = (
    (16, "llvm.x86.avx512.pmaddw.d.512", "avx512bw", "AVX512-BW", 4.0),
    (8, "llvm.x86.avx2.pmadd.wd", "avx2", "AVX2", 2.7),
    (4, "llvm.x86.sse2.pmadd.wd", "sse4.2", "SSE4.2", 2.7),
)
"""Four instructions a product: two of 512 bits start in a cycle, or three narrower ones, and two multiply-adds."""
_ARM = "llvm.aarch64.neon.{}.v4i32.v16i8"

_DOTS = (
    *(
        ByteDot(rows, lanes, feature, extension, cost, registers, _of_words(rows, lanes, intrinsic, "uint8"))
        for lanes, intrinsic, feature, extension in _VNNI
        for rows, cost, registers in (("uint8", 1.0, 0), ("int8", 2.0, 2))
    ),
    *(
        ByteDot(rows, lanes, feature, extension, cost, 3, _of_halves(rows, lanes, intrinsic))
        for lanes, intrinsic, feature, extension, cost in _MADD
        for rows in ("uint8", "int8")
    ),
    ByteDot("uint8", 4, "i8mm", "I8MM", 1.0, 0, _of_words("uint8", 4, _ARM.format("usdot"), "uint8")),
    ByteDot("uint8", 4, "dotprod", "dot products", 2.0, 2, _of_words("uint8", 4, _ARM.format("sdot"), "int8")),
    ByteDot("int8", 4, "dotprod", "dot products", 1.0, 0, _of_words("int8", 4, _ARM.format("sdot"), "int8")),
)
