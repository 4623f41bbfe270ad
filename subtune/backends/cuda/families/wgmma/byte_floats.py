"""Bytes of a register as floats: one permutation puts a byte behind the upper bytes of 1.5 * 2^23.

    float of (int32 of x) + 0x4B400000        as TIR says it (`legalize_quantised`), with x one of four in a word
->  float of __byte_perm(word, 0x4B400000, 0x765i)

Otherwise a byte is taken out of its word first, in one to two instructions.

A number that is rounded to a byte, and the byte made a float again, has the float in its bits all the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

_UPPER_BYTES, _SELECTOR, _SHIFT = 0x4B400000, 0x7650, 12582912.0
_BYTES_OF_WORD = 4


def words_of(registers: Sequence[Any]) -> dict[Any, Any]:
    """Those of `registers` that hold uint8 in whole words, and each of them as uint32."""
    held = (part for part in registers if str(part.dtype) == "uint8" and int(part.shape[0]) % _BYTES_OF_WORD == 0)
    return {part: part.view("uint32") for part in held}


def permuted(value: Any, words: Mapping[Any, Any]) -> Any:
    """`value` with bytes that are read of a key of `words` (`words_of`) made floats so."""

    def one(call: Any) -> Any:
        byte = _byte_of(call)
        registers = next(
            (word for buffer, word in words.items() if byte is not None and byte.source.same_as(buffer)), None
        )
        if byte is None or registers is None:
            return call
        (index,) = byte.indices
        word = tirx.BufferLoad(registers, [tirx.floordiv(index, _BYTES_OF_WORD)])
        selector = tirx.const(_SELECTOR, "int32") + tirx.floormod(index, _BYTES_OF_WORD)
        upper = tirx.const(_UPPER_BYTES, "uint32")
        return tirx.reinterpret("float32", tirx.call_pure_extern("uint32", "__byte_perm", word, upper, selector))

    return tvm_ffi.structural_map(value, (ir.Call, one)) if words else value


def floats_of_rounded(value: Any) -> Any:
    """`value` with every byte that is rounded in it, and then made a float, as the float that its rounding has.

        float of (int32 of (byte of (bits of y + zero - 0x4B400000)) + 0x4B400000)    y: of a byte's range, and shifted
    ->  float of (bits of y + zero)
    """

    def one(call: Any) -> Any:
        cast: Any = _shifted(call)
        byte = cast.value if isinstance(cast, tirx.Cast) else None
        if not isinstance(byte, tirx.Cast) or str(byte.ty) not in ("uint8", "int8") or not _is_bounded(byte):
            return call
        bits = Analyzer().simplify(byte.value + tirx.const(_UPPER_BYTES, "int32"))
        return tirx.reinterpret("float32", bits)

    return tvm_ffi.structural_map(value, (ir.Call, one))


def wide_of_byte(value: Any) -> Any:
    """`value`, a byte, as the integer of 32 bits that it is converted from, where that is of a byte's range."""
    is_cast = isinstance(value, tirx.Cast) and str(value.ty) in ("uint8", "int8")
    return value.value if is_cast and _is_bounded(value) else value


def _is_bounded(byte: Any) -> bool:
    """Whether the bits that become `byte` are of max(min(x, its largest - zero), its least - zero) + 1.5 * 2^23."""
    found: list[Any] = []
    tvm_ffi.structural_walk(byte.value, (ir.Call, found.append), order="pre")
    bits = [call for call in found if _is_reinterpreted(call, "int32")]
    if not bits:
        return False
    analyzer, limits = Analyzer(), np.iinfo(str(byte.ty))
    zero = analyzer.simplify(byte.value - bits[0] + tirx.const(_UPPER_BYTES, "int32"))
    (y,) = bits[0].args
    if not (isinstance(y, tirx.Add) and _is_number(y.b, _SHIFT) and isinstance(y.a, tirx.Max)):
        return False
    low, inner = (y.a.b, y.a.a) if isinstance(y.a.a, tirx.Min) else (y.a.a, y.a.b)
    if not isinstance(inner, tirx.Min):
        return False
    return any(_is_limit(analyzer, high, limits.max, zero) for high in (inner.a, inner.b)) and _is_limit(
        analyzer, low, limits.min, zero
    )


def _is_limit(analyzer: Analyzer, bound: Any, limit: int, zero: Any) -> bool:
    """Whether `bound` is limit - zero as a float."""
    if isinstance(bound, tirx.FloatImm) and isinstance(zero, tirx.IntImm):
        return float(bound.value) == limit - int(zero)
    return isinstance(bound, tirx.Cast) and bool(analyzer.can_prove_equal(bound.value, limit - zero))


def _is_number(expr: Any, number: float) -> bool:
    return isinstance(expr, tirx.FloatImm) and float(expr.value) == number


def _is_reinterpreted(call: Any, dtype: str) -> bool:
    return isinstance(call.op, ir.Op) and call.op.name == "tirx.reinterpret" and str(call.ty) == dtype


def _shifted(call: Any) -> Any | None:
    """x, where `call` is the float of x + 0x4B400000."""
    if not _is_reinterpreted(call, "float32"):
        return None
    (bits,) = call.args
    is_shifted = isinstance(bits, tirx.Add) and isinstance(bits.b, tirx.IntImm) and int(bits.b) == _UPPER_BYTES
    return bits.a if is_shifted else None


def _byte_of(call: Any) -> Any | None:
    """The byte whose float `call` is, if it has that form."""
    cast: Any = _shifted(call)
    is_byte = isinstance(cast, tirx.Cast) and isinstance(cast.value, ir.TensorLoad) and str(cast.value.ty) == "uint8"
    return cast.value if is_byte else None
