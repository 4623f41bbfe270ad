"""Bytes of a register as floats: one permutation puts a byte behind the upper bytes of 1.5 * 2^23.

    float of (int32 of x) + 0x4B400000        as TIR says it (`legalize_quantised`), with x one of four in a word
->  float of __byte_perm(word, 0x4B400000, 0x765i)

Otherwise a byte is taken out of its word first, in one to two instructions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

_UPPER_BYTES, _SELECTOR = 0x4B400000, 0x7650
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


def _byte_of(call: Any) -> Any | None:
    """The byte whose float `call` is, if it has that form."""
    if not (isinstance(call.op, ir.Op) and call.op.name == "tirx.reinterpret" and str(call.ty) == "float32"):
        return None
    (bits,) = call.args
    if not (isinstance(bits, tirx.Add) and isinstance(bits.b, tirx.IntImm) and int(bits.b) == _UPPER_BYTES):
        return None
    cast = bits.a
    is_byte = isinstance(cast, tirx.Cast) and isinstance(cast.value, ir.TensorLoad) and str(cast.value.ty) == "uint8"
    return cast.value if is_byte else None
