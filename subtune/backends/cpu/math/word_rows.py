"""Words along a row of a window, whose pixels lie side by side in memory: one word may hold parts of two pixels.

    C[y, x, o] += A[y s + i, x s + j, c] * B[o, i, j, c]                       j < KW, c < CH, K = KW * CH
->  Bw[o, i, q] = B[o, i, 4q .. 4q + 3]                                        j and c as one axis of K bytes
    C[y, x, o] = dot(C[y, x, o], A[y s + i, x s CH + min(4q, K - 4) ..], Bw[o, i, q])     q < ceil(K / 4)

A network's first convolution, of 7x7 windows of 3 channels, has 6 words of a row instead of 7, and of 1 channel 2. As a
pixel need not be whole words, the data are read as they lie. The last word ends where the row of the window does:
nothing behind is read, and the bytes that the word before has multiplied meet zeros.

Only bytes: of floats, zero times a number that another word multiplies may be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math.words import (
    HALVES,
    InWords,
    WordPacking,
    Words,
    axes_in_words,
    bits_of,
    dims_of,
    is_one_of,
    iter_vars_in_words,
    iter_vars_of,
    sides,
    word_axis,
    words_of,
)
from subtune.core.kernel import NotApplicable, Packing
from subtune.patterns.axes import Axis, Operand
from subtune.patterns.contraction import Contraction
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.substitute import substitute


class Row(NamedTuple):
    """Of a window: the axes of its pixels and their channels by index, and how many there are of each."""

    tap: int
    channel: int
    pixels: int
    channels: int

    @property
    def length(self) -> int:
        return self.pixels * self.channels

    def words(self, count: int) -> int:
        return -(-self.length // count)


def window_row(info: Contraction) -> Row | NotApplicable:
    """The row of a contraction's windows that lies in one piece in both operands."""
    words, channel = words_of(info), word_axis(info)
    if words is None or words is HALVES:
        return NotApplicable("its operands are no bytes")
    if channel < 0 or info.per_group or len(info.a.axes) < 2 or not info.b.is_constant:
        return NotApplicable("its weights are no constant windows of all channels")
    slide = info.a.windows[-2]
    if slide is None or slide.dilation != 1 or info.b.axes[-2:] != (slide.tap, channel):
        return NotApplicable("the pixels of a window do not lie side by side")
    row = Row(slide.tap, channel, info.axes[slide.tap].extent, info.axes[channel].extent)
    return row if row.channels == info.a.shape[-1] else NotApplicable("a window reads some of the channels")


def saves_words(row: Row, count: int) -> bool:
    """Whether rows have fewer words than their pixels, each rounded up, have."""
    return row.words(count) < row.pixels * -(-row.channels // count)


def is_copied(info: Contraction, row: Row, count: int) -> bool:
    """Whether A's rows are copied: what a kernel makes itself, and what is shorter than a word."""
    return info.a.param < 0 or row.length < count


def in_row_words(info: Contraction, row: Row, count: int) -> Contraction:
    """The contraction as one of elements of 32 bits, the pixels of a row one axis with their channels."""
    *outer, width, channels = info.a.shape
    a = _of_words(info.a, (*outer, -(-width * channels // count), 1))
    b = _of_words(info.b, (*info.b.shape[:-2], 1, row.words(count)))
    return Contraction(_axes(info, row, count), a, b, info.acc_dtype)


def _of_words(operand: Operand, shape: tuple[int, ...]) -> Operand:
    return replace(operand, shape=shape, dtype="int32")


def _axes(info: Contraction, row: Row, count: int) -> tuple[Axis, ...]:
    """The axis of pixels has one element, that of channels the row's words."""
    flat = [
        replace(axis, extent={row.tap: 1, row.channel: row.length}.get(axis.index, axis.extent)) for axis in info.axes
    ]
    return axes_in_words(flat, row.channel, count)


@dataclass(frozen=True, slots=True)
class RowPacking:
    """A constant whose last two dims are a row, in words as the kernel reads them: the last one ends with the row."""

    count: int
    packing: Packing

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packing.shape

    def __call__(self, array: np.ndarray) -> np.ndarray:
        *outer, pixels, channels = array.shape
        length = pixels * channels
        rows, short = array.reshape(*outer, 1, length), -length % self.count
        if short and length > self.count:  # else the one word begins with the row
            last = length - length % self.count
            rows = np.insert(rows, [last] * short, 0, axis=-1)
        return WordPacking(rows.ndim - 1, self.count, self.packing)(rows)


def in_rows(func: PrimFunc, block_name: str, info: Contraction, row: Row) -> InWords | NotApplicable:
    """Rewrite the anchor `block_name`, which `info` describes, to sum over words of its windows' rows."""
    words = words_of(info)
    if words is None:
        return NotApplicable("no instruction multiplies its operands in words")
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == block_name)
    anchor, count = stage_block(stages[at]), words.count
    factors = sides(anchor, anchor.iter_vars[info.n.index].var, words)
    if isinstance(factors, NotApplicable):
        return factors
    a_load, b_load = factors
    if not isinstance(a_load, ir.TensorLoad) or not isinstance(b_load, ir.TensorLoad):
        return NotApplicable("something is computed on the way to the product")
    var, zero = tirx.Var("vq", "int64"), tirx.const(0, "int64")
    first = {anchor.iter_vars[axis].var: zero for axis in (row.tap, row.channel)}
    *image, x, _ = (substitute(index, first) for index in a_load.indices)
    start, made, a_copy = _start(var, row, count), [], ""
    if not is_copied(info, row, count):
        # Behind a pixel's channels are those of the next one. What a block reads is asked of buffers made in a kernel.
        a_buffer, indices = a_load.source, [*image, x, _ramp(start, count)]
    else:
        a_buffer, stage = _flat_copy(a_load, max(count - row.length, 0), is_one_of(func.params, a_load))
        indices = [*image, _ramp(x * tirx.const(row.channels, "int64") + start, count)]
        made, a_copy = [stage], str(a_buffer.name)
    a_value = tirx.reinterpret("int32", tirx.BufferLoad(a_buffer, indices))
    b_buffer, stage = _row_words(b_load, row, words)
    b_value = tirx.BufferLoad(b_buffer, [substitute(index, first) for index in b_load.indices[:-1]] + [var])

    store = anchor.body
    c_value = tirx.BufferLoad(store.buffer, list(store.indices))
    body = tirx.BufferStore(store.buffer, words.dot(c_value, a_value, b_value), list(store.indices))
    iter_vars = iter_vars_in_words(anchor, row.channel, row.words(count), var)
    rewritten = nest(anchor.name_hint, iter_vars, {row.tap: 1}, body, anchor.init)
    buffers = [*func.body.block.alloc_buffers, b_buffer, *([a_buffer] if a_copy else [])]
    new = with_stages(func, [*stages[:at], *made, stage, rewritten, *stages[at + 1 :]], buffers)
    a = replace(info.a, read=0, shape=tuple(dims_of(a_buffer)), param=-1 if a_copy else info.a.param)
    b = replace(info.b, read=1, shape=tuple(dims_of(b_buffer)), dtype="int32", param=-1)
    made_info = Contraction(_axes(info, row, count), a, b, info.acc_dtype)
    return InWords(new, made_info, words, b_buffer.name, a_copy, len(b.shape) - 1)


def _start(word: Any, row: Row, count: int) -> Any:
    """Where in a row a word begins."""
    start = word * tirx.const(count, "int64")
    if row.length % count == 0 or row.length < count:
        return start
    return tirx.min(start, tirx.const(row.length - count, "int64"))


def _ramp(first: Any, count: int) -> Any:
    return tirx.Ramp(first, tirx.const(1, "int64"), count)


def _flat_copy(load: Any, more: int, is_param: bool) -> tuple[Any, Any]:
    """A copy of A whose rows are one dim, with `more` zeros behind each, and the stage that makes it."""
    *image, width, channels = dims_of(load.source)
    shape = [*image, width * channels + more]
    buffer = tirx.decl_buffer(
        [tirx.const(d, "int64") for d in shape], str(load.source.dtype), f"{load.source.name}_rows"
    )
    iter_vars = iter_vars_of(shape)
    *outer, at = (iv.var for iv in iter_vars)
    end = tirx.const(width * channels, "int64")
    kept = at if is_param or not more else tirx.min(at, end - 1)
    pixel = [tirx.floordiv(kept, tirx.const(channels, "int64")), tirx.floormod(kept, tirx.const(channels, "int64"))]
    value = tirx.BufferLoad(load.source, [*outer, *pixel])
    if more:
        value = tirx.if_then_else(at < end, value, tirx.const(0, str(load.source.dtype)))
    return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, [*outer, at]), None)


def _row_words(load: Any, row: Row, words: Words) -> tuple[Any, Any]:
    """B's rows in words, and the stage that makes them, as `RowPacking` does it of a constant."""
    count = words.count
    shape = [*dims_of(load.source)[:-2], 1, row.words(count)]
    buffer = tirx.decl_buffer([tirx.const(d, "int64") for d in shape], "int32", f"{load.source.name}_words")
    iter_vars = iter_vars_of(shape)
    *outer, _, word = (iv.var for iv in iter_vars)
    value = tirx.const(0, "int32")
    for i in range(count):
        place = _start(word, row, count) + tirx.const(i, "int64")
        kept = tirx.min(place, tirx.const(row.length - 1, "int64"))
        channels = tirx.const(row.channels, "int64")
        element = tirx.BufferLoad(load.source, [*outer, tirx.floordiv(kept, channels), tirx.floormod(kept, channels)])
        is_own = tirx.all(place >= word * tirx.const(count, "int64"), place < tirx.const(row.length, "int64"))
        bits = tirx.if_then_else(is_own, bits_of(element, words), tirx.const(0, "int32"))
        value = value | (bits << tirx.const(i * words.bits, "int32"))
    index = [iv.var for iv in iter_vars]
    return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, index), None)
