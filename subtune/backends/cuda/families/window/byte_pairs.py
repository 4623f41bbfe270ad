"""The largest or smallest of bytes, two to an instruction: a word of four is two pairs of 16 bits.

    odd    = max(odd, word, next word)                  bytes 1 and 3; those below them decide between equal ones alone
    even   = max(even, word << 8, next word << 8)       bytes 0 and 2
    bytes  = the upper bytes of both

From sm_90 on either is one instruction (VIMNMX3.U16x2). A maximum of four bytes at once, `__vmaxu4`, is four, and byte
by byte it takes longer to unpack than to compare.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from subtune.backends.cuda.source.axes import dtype_of, is_global
from subtune.backends.cuda.source.emit import Code, const, load, ramp
from subtune.backends.cuda.source.lanes import Lanes, Unsupported
from subtune.tir.expressions import choice_of
from subtune.tir.substitute import substitute

BYTES_OF_WORD = 4
_UPPER_BYTES = 0x7351
"""For __byte_perm(even, odd): bytes 1 and 3 of each, in turns."""
_FUNCTIONS = {
    (tirx.Max, "uint8"): "__vimax3_u16x2", (tirx.Max, "int8"): "__vimax3_s16x2",
    (tirx.Min, "uint8"): "__vimin3_u16x2", (tirx.Min, "int8"): "__vimin3_s16x2",
}  # fmt: skip


class BytePairs:
    """The extremes of `pixels` windows, each of the `reader`'s lanes, in a thread of `code`.

    `combiner` is tirx.Max or tirx.Min, `identity` what it begins with. Raises Unsupported where these are others, and
    where an element of a window is not read as it is, or is no number that is known.
    """

    def __init__(self, code: Code, reader: Lanes, combiner: type, identity: Any, pixels: int) -> None:
        dtype = dtype_of(identity)
        if (combiner, dtype) not in _FUNCTIONS or not _is_neutral(combiner, dtype, identity):
            raise Unsupported("no largest or smallest of bytes")
        if reader.width % BYTES_OF_WORD:
            raise Unsupported(f"{reader.width} bytes are no words")
        self._code, self._reader, self._dtype = code, reader, dtype
        self._function, self._words = _FUNCTIONS[combiner, dtype], reader.width // BYTES_OF_WORD
        self._odd, self._even = (code.local("uint32", pixels * self._words, name) for name in ("odd", "even"))
        self._is_begun = [False] * pixels
        self._waiting: list[list[Any]] = [[] for _ in range(pixels)]
        self._read: dict[Any, Any] = {}

    def read(self, element: Any) -> Any:
        """The words of an element of the window, for `add`; read now, unless they were before."""
        condition, value, outside = choice_of(element) or (None, element, None)
        if not isinstance(value, ir.TensorLoad) or not is_global(value.source):
            raise Unsupported("elements of the window are computed")
        if outside is not None and not isinstance(outside, tirx.IntImm):
            raise Unsupported("what stands for elements outside is no number")
        reader, lanes = self._reader, self._reader.width
        condition = None if condition is None else reader.condition(condition)
        if isinstance(condition, tirx.IntImm) and int(condition):
            condition = None
        flat = reader.flat(value.source, list(value.indices))
        at = reader.simplify(substitute(flat, {reader.lane: const(0)}))
        if not reader.is_zero(flat - at - reader.lane) or len(reader.pieces(self._dtype, at, lanes)) > 1:
            raise Unsupported("the channels of a pixel are not read in one access")
        key = value.source, *(None if e is None else tvm_ffi.StructuralKey(e) for e in (at, condition))
        if key not in self._read:
            self._read[key] = self._loaded(value.source, at, condition, outside)
        return self._read[key]

    def _loaded(self, buffer: Any, at: Any, condition: Any, outside: Any) -> Any:
        code, words = self._code, self._registers("words")
        if condition is not None:
            fill = tirx.const(int(outside) % 256 * 0x01010101, "uint32")
            with code.unrolled(self._words) as w:
                code.store(words, w, fill)
        with code.when(condition):
            whole = tirx.reinterpret(_vector("uint32", self._words), load(buffer, ramp(at, self._reader.width)))
            code.store(words, ramp(const(0), self._words), whole)
        return words

    def add(self, pixel: int, words: Any) -> None:
        """What `read` gave, to the extremes of `pixel`: two at a time, in one place of the code."""
        if not self._is_begun[pixel]:
            self._is_begun[pixel] = True
            with self._code.unrolled(self._words) as w:
                self._keep(const(pixel * self._words) + w, [(load(words, w), _shifted(load(words, w)))])
            return
        self._waiting[pixel].append(words)
        if len(self._waiting[pixel]) == 2:
            self._combine(pixel)

    def _combine(self, pixel: int) -> None:
        first, second = self._waiting[pixel] * (2 // len(self._waiting[pixel]))
        self._waiting[pixel] = []
        with self._code.unrolled(self._words) as w:
            values = [load(words, w) for words in (first, second)]
            self._keep(const(pixel * self._words) + w, [(value, _shifted(value)) for value in values])

    def _keep(self, at: Any, values: list[tuple[Any, Any]]) -> None:
        """The first of each of `values` to the odd bytes, the second to the even ones; a single one begins them."""
        for kept, given in zip((self._odd, self._even), zip(*values, strict=True), strict=True):
            is_first = len(given) == 1
            both = given[0] if is_first else tirx.call_pure_extern("uint32", self._function, load(kept, at), *given)
            self._code.store(kept, at, both)

    def extreme(self, pixel: int) -> Any:
        """The extreme of `pixel` in the reader's lane."""
        if self._waiting[pixel]:
            self._combine(pixel)
        code, lanes, words = self._code, self._reader.width, self._registers("words")
        with code.unrolled(self._words) as w:
            at = const(pixel * self._words) + w
            both = load(self._even, at), load(self._odd, at)
            selector = tirx.const(_UPPER_BYTES, "uint32")
            code.store(words, w, tirx.call_pure_extern("uint32", "__byte_perm", *both, selector))
        made = code.local(self._dtype, lanes, "made")
        whole = tirx.reinterpret(_vector(self._dtype, lanes), load(words, ramp(const(0), self._words)))
        code.store(made, ramp(const(0), lanes), whole)
        return load(made, self._reader.lane)

    def _registers(self, name: str) -> Any:
        return self._code.local("uint32", self._words, name)


def _is_neutral(combiner: type, dtype: str, identity: Any) -> bool:
    neutral = tirx.min_value(dtype) if combiner is tirx.Max else tirx.max_value(dtype)
    return isinstance(identity, tirx.IntImm) and int(identity) == int(neutral)


def _shifted(word: Any) -> Any:
    return tirx.shift_left(word, tirx.const(8, "uint32"))


def _vector(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype
