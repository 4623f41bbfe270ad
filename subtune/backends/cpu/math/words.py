"""A contraction of narrow operands, summed over words: 32 bits of neighbours along its innermost reduction axis.

    C[m, n] += cast(acc, A[m, k]) * cast(acc, B[k, n])                    k < K
->  Bw[q, n] = B[2q, n] | B[2q + 1, n] << 16                              of bfloat16, two in a word
    Bw[q, n] = B[4q, n] | B[4q + 1, n] << 8 | ...                         of bytes, four
    C[m, n] = dot(C[m, n], A[m, word q], Bw[q, n])                        q < ceil(K / 2), ceil(K / 4)

A constant's words are made at compile time. A K that fills no whole words is padded with zeros in both operands, A in a
copy. From here on a word is what a float32 is to other contractions: loaded, broadcast and multiplied as one element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import PrimFunc

from subtune.backends.cpu.math import bf16_ops, byte_ops
from subtune.core.kernel import NotApplicable, Packing
from subtune.patterns.axes import Axis
from subtune.patterns.contraction import Contraction
from subtune.tir.blocks import nest, root_stages, stage_block, with_stages
from subtune.tir.expressions import loads, variables
from subtune.tir.substitute import substitute


@dataclass(frozen=True, slots=True)
class Words:
    """What a word holds, and the operator that multiplies the words of two operands and adds to an accumulator.

    Attributes:
        a, b, acc: types of the operands and the accumulator.
        count: elements of a word.
        dot: c, a, b -> c and the products of a's elements with b's.
    """

    a: str
    b: str
    acc: str
    count: int
    dot: Callable[[Any, Any, Any], Any]

    @property
    def bits(self) -> int:
        return 32 // self.count


HALVES = Words("bfloat16", "bfloat16", "float32", 2, bf16_ops.dot)
BYTES = Words("uint8", "int8", "int32", 4, byte_ops.dot)
SIGNED_BYTES = Words("int8", "int8", "int32", 4, byte_ops.signed_dot)


def words_of(info: Contraction) -> Words | None:
    """How a contraction's operands lie in words; None where no processor multiplies those.

    The first operand may be rounded to bfloat16 where it is read. Bytes are as they lie.
    """
    fitting = (w for w in (HALVES, BYTES, SIGNED_BYTES) if (info.b.dtype, info.acc_dtype) == (w.b, w.acc))
    return next((words for words in fitting if words is HALVES or info.a.dtype == words.a), None)


def word_axis(info: Contraction) -> int:
    """The reduced axis along which both operands lie innermost; -1: none. Of a group's channels B says which it is."""
    last = info.b.axes[-1] if info.per_group and info.a.axes[-1] < 0 else info.a.axes[-1]
    is_reduced = last >= 0 and info.axes[last].role == "k"
    if not is_reduced or last not in info.b.axes or -1 in info.b.axes or len(set(info.b.axes)) != len(info.b.axes):
        return -1
    is_of_group = not info.per_group or info.axes[last].extent * info.groups == info.a.shape[-1]
    return last if is_of_group else -1


@dataclass(frozen=True, slots=True)
class WordPacking:
    """A constant's dim `k_dim` in words of `count` elements, padded with zeros, each an int32, then packed."""

    k_dim: int
    count: int
    packing: Packing

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packing.shape

    def __call__(self, array: np.ndarray) -> np.ndarray:
        last = np.moveaxis(array.view(f"uint{array.itemsize * 8}"), self.k_dim, -1)
        if short := -last.shape[-1] % self.count:
            last = np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, short)])
        return self.packing(np.moveaxis(np.ascontiguousarray(last).view(np.int32), -1, self.k_dim))


@dataclass(frozen=True, slots=True)
class InWords:
    """`func` with its anchor over words; `info` describes that. `a_copy` is the block that copies A, "" if none."""

    func: PrimFunc
    info: Contraction
    words: Words
    b_words: str
    a_copy: str
    k_dim: int


def _axes_in_words(info: Contraction, count: int) -> tuple[Axis, ...] | NotApplicable:
    """The axes with the one that runs innermost in A counted in words of `count`."""
    last = word_axis(info)
    if last < 0:
        return NotApplicable("the operands have no reduced axis along which both lie in words")
    if info.per_group and info.axes[last].extent % count:
        return NotApplicable("the channels of a group are no whole words")
    return axes_in_words(info.axes, last, count)


def axes_in_words(axes: Sequence[Axis], last: int, count: int) -> tuple[Axis, ...]:
    """The axes with the one of index `last` counted in words of `count`."""
    return tuple(replace(a, extent=-(-a.extent // count)) if a.index == last else a for a in axes)


def iter_vars_in_words(anchor: Any, last: int, extent: int, word: Any) -> list[Any]:
    """An anchor's axes with `word`, of so many words, in place of the one of index `last`."""
    return [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64")), word, int(iv.iter_type))
        if i == last
        else iv
        for i, iv in enumerate(anchor.iter_vars)
    ]


def in_words(func: PrimFunc, block_name: str, info: Contraction) -> InWords | NotApplicable:
    """Rewrite the anchor `block_name`, which `info` describes, to sum over words."""
    words = words_of(info)
    if words is None:
        return NotApplicable("no instruction multiplies its operands in words")
    axes, count = _axes_in_words(info, words.count), words.count
    if isinstance(axes, NotApplicable):
        return axes
    stages = root_stages(func)
    at = next(i for i, stage in enumerate(stages) if stage_block(stage).name_hint == block_name)
    anchor = stage_block(stages[at])
    factors = sides(anchor, anchor.iter_vars[info.n.index].var, words)
    if isinstance(factors, NotApplicable):
        return factors
    a_side, b_side = factors
    last = word_axis(info)
    extent = info.axes[last].extent
    var = tirx.Var("vq", "int64")

    made: list[Any] = []
    a_load, a_copy = loads(a_side)[0], ""
    a_buffer = a_load.source
    if extent % count or not a_side.same_as(a_load):
        a_buffer, stage = _whole_copy(a_side, a_load, count, is_one_of(func.params, a_load))
        a_copy = a_buffer.name
        made.append(stage)
    if a_copy and info.per_group:
        return NotApplicable("the first operand is no bytes as they lie")
    # of a group's channels: those of the groups before it come first
    before = substitute(list(a_load.indices)[-1], {anchor.iter_vars[last].var: tirx.const(0, "int64")})
    ramp = tirx.Ramp(before + var * tirx.const(count, "int64"), tirx.const(1, "int64"), count)
    a_value = tirx.reinterpret("int32", tirx.BufferLoad(a_buffer, [*list(a_load.indices)[:-1], ramp]))

    b_load = loads(b_side)[0]
    k_dim = info.b.axes.index(last)
    is_param = is_one_of(func.params, b_load)
    b_buffer, stage = _b_words(b_side, b_load, k_dim, words, extent, is_param)
    made.append(stage)
    b_indices = [var if dim == k_dim else index for dim, index in enumerate(b_load.indices)]
    b_value = tirx.BufferLoad(b_buffer, b_indices)

    store = anchor.body
    c_value = tirx.BufferLoad(store.buffer, list(store.indices))
    body = tirx.BufferStore(store.buffer, words.dot(c_value, a_value, b_value), list(store.indices))
    iter_vars = iter_vars_in_words(anchor, last, axes[last].extent, var)
    rewritten = nest(anchor.name_hint, iter_vars, {}, body, anchor.init)
    buffers = [*func.body.block.alloc_buffers, b_buffer, *([a_buffer] if a_copy else [])]
    new = with_stages(func, [*stages[:at], *made, rewritten, *stages[at + 1 :]], buffers)
    a = replace(info.a, read=0, shape=dims_of(a_buffer), param=-1 if a_copy else info.a.param)
    b = replace(info.b, read=1, shape=dims_of(b_buffer), dtype="int32", param=-1)
    return InWords(new, Contraction(axes, a, b, info.acc_dtype, info.per_group), words, b_buffer.name, a_copy, k_dim)


def sides(anchor: Any, n: Any, words: Words = HALVES) -> tuple[Any, Any] | NotApplicable:
    """The two factors as expressions of the narrow types, the one that `n` indexes second."""
    product = anchor.body.value.b
    wide = [product.a, product.b] if isinstance(product, tirx.Mul) else []
    if len(wide) != 2 or not all(isinstance(side, tirx.Cast) for side in wide):
        return NotApplicable("the operands are not widened and multiplied")
    first, second = (side.value for side in wide)
    first, second = (first, second) if n in variables(second) else (second, first)
    if (str(first.ty), str(second.ty)) != (words.a, words.b):
        return NotApplicable(f"the operands are not {words.a} and {words.b}, multiplied in {words.acc}")
    return first, second


def is_one_of(params: Any, load: ir.TensorLoad) -> bool:
    return any(param.same_as(load.source) for param in params)


def _kept(index: Any, extent: int, is_param: bool) -> Any:
    """An index that may lie beyond: a stage before this one is to make all that is read, says TVM."""
    return index if is_param else tirx.min(index, tirx.const(extent - 1, "int64"))


def _whole_copy(side: Any, load: ir.TensorLoad, count: int, is_param: bool) -> tuple[Any, Any]:
    """A copy of A in its narrow type, its last dim padded to whole words, and the stage that makes it."""
    shape, dtype = dims_of(load.source), str(side.ty)
    whole = [*shape[:-1], -(-shape[-1] // count) * count]
    buffer = tirx.decl_buffer([tirx.const(d, "int64") for d in whole], dtype, f"{load.source.name}_words")
    iter_vars = iter_vars_of(whole)
    index = [iv.var for iv in iter_vars]
    if not shape[-1] % count:
        value = _at(side, load, index)
    else:
        value = _at(side, load, [*index[:-1], _kept(index[-1], shape[-1], is_param)])
        value = tirx.if_then_else(index[-1] < tirx.const(shape[-1], "int64"), value, tirx.const(0, dtype))
    return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, index), None)


def constant_words(load: ir.TensorLoad, k_dim: int, words: Words, extent: int) -> tuple[Any, Any]:
    """A parameter's dim `k_dim`, of `extent`, in words, as int32, and the stage that makes it."""
    return _b_words(load, load, k_dim, words, extent, is_param=True)


def _b_words(side: Any, load: ir.TensorLoad, k_dim: int, words: Words, extent: int, is_param: bool) -> tuple[Any, Any]:
    """B with its dim `k_dim` in words, as int32, and the stage that makes it; a parameter's are read as they lie."""
    shape, count = dims_of(load.source), words.count
    shape[k_dim] = -(-extent // count)
    buffer = tirx.decl_buffer([tirx.const(d, "int64") for d in shape], "int32", f"{load.source.name}_words")
    iter_vars = iter_vars_of(shape)
    index = [iv.var for iv in iter_vars]
    first = index[k_dim] * tirx.const(count, "int64")
    if is_param and side.same_as(load) and k_dim == len(shape) - 1 and extent % count == 0:
        ramp = tirx.Ramp(first, tirx.const(1, "int64"), count)
        value = tirx.reinterpret("int32", tirx.BufferLoad(load.source, [*index[:-1], ramp]))
        return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, index), None)
    value = tirx.const(0, "int32")
    for i in range(count):
        k = first + tirx.const(i, "int64")
        is_beyond = 0 < extent % count <= i
        kept = _kept(k, extent, is_param) if is_beyond else k
        bits = bits_of(_at(side, load, [kept if dim == k_dim else at for dim, at in enumerate(index)]), words)
        if is_beyond:
            bits = tirx.if_then_else(k < tirx.const(extent, "int64"), bits, tirx.const(0, "int32"))
        value = bits if i == 0 else value | (bits << tirx.const(i * words.bits, "int32"))
    return buffer, nest(buffer.name, iter_vars, {}, tirx.BufferStore(buffer, value, index), None)


def bits_of(element: Any, words: Words) -> Any:
    """An element's bits as an int32, the lowest ones."""
    if words is not HALVES:
        return tirx.Cast("int32", element) & tirx.const(0xFF, "int32")
    return tirx.Cast("int32", tirx.reinterpret(f"uint{words.bits}", element))


def _at(side: Any, load: ir.TensorLoad, index: list[Any]) -> Any:
    """`side`, casts of `load`, at other indices."""
    moved = tirx.BufferLoad(load.source, index)
    return tvm_ffi.structural_map(side, (ir.TensorLoad, lambda _: moved))


def iter_vars_of(shape: list[int]) -> list[Any]:
    return [
        tirx.IterVar(ir.Range(tirx.const(0, "int64"), tirx.const(extent, "int64")), tirx.Var(f"p{i}", "int64"), 0)
        for i, extent in enumerate(shape)
    ]


def dims_of(buffer: Any) -> Any:
    return [int(dim) for dim in buffer.shape]
