"""A max pooling of what a convolution makes, recognised from the TIR.

    S[o, y, x, c]   = sum over k of ...                   the convolution
    T[o, y, x, c]   = f(S[o, y, x, c])                    its epilogue, rounded to 16 bits, or to a byte
    out[o, h, w, c] = max over kh, kw of T[o, h * stride + kh - before, w * stride + kw - before, c]

The convolution with its epilogue is a workload of its own, `front`, as all that knows convolutions reads it. Names are
never looked at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, sym, tirx
from tvm.tirx import PrimFunc

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import BYTES, HALVES
from subtune.core.workload import Workload
from subtune.patterns.reductions import Blocks, reductions_of
from subtune.tir.expressions import is_same, loads
from subtune.tir.substitute import substitute

_ROUNDED = frozenset(HALVES) | BYTES


@dataclass(frozen=True, slots=True)
class Pooled:
    """Maxima over windows of `kernel` rows and columns; the first begins `before` the image's first row and column.

    `size` is that of what `front` gives, rows and columns of pixels, `out_size` that of the result.
    """

    front: Workload
    size: tuple[int, int]
    out_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]


def pooled(func: PrimFunc, num_outputs: int) -> Pooled | NotApplicable:
    """An unscheduled PrimFunc as such a pooling, or why it is none."""
    found = reductions_of(func, num_outputs, (2,), "convolution and its pooling")
    if isinstance(found, NotApplicable):
        return found
    blocks, reductions = found
    try:
        return _read(func, blocks, reductions[1])
    except _Unfit as e:
        return NotApplicable(str(e))


class _Unfit(Exception):
    """Why a function is no such pooling."""


def _need(condition: Any, reason: str) -> None:
    if not condition:
        raise _Unfit(reason)


def _read(func: PrimFunc, blocks: Blocks, pool: Any) -> Pooled:
    store = pool.body
    reduced = [iv for iv in pool.iter_vars if int(iv.iter_type) == tirx.IterVar.CommReduce]
    windows = [iv for iv in reduced if int(iv.dom.extent) > 1]
    _need(len(store.indices) == 4 and len(windows) == 2, "no window of rows and columns")
    _need(isinstance(store.value, tirx.Max), "no maximum")
    others = [load for load in loads(store.value) if not load.source.same_as(store.buffer)]
    _need(len(others) == 1, "no maximum of one tensor")
    read = others[0]
    _need(any(is_same(side, read) for side in (store.value.a, store.value.b)), "something is computed on the way")
    one = {iv.var: tirx.const(0, "int64") for iv in reduced if int(iv.dom.extent) == 1}
    image, at = _unpadded(blocks, read, list(pool.iter_vars))
    at = [substitute(index, one) for index in at]
    image = _narrow(blocks, image)
    dtype = str(image.dtype)
    _need(image in blocks.made and dtype in _ROUNDED, "what is pooled is not rounded to 16 bits, or to a byte")
    _need(dtype == str(blocks.params[-1].dtype), "the result is of another type")
    _check_result(blocks, store.buffer)
    extents = {iv.var: int(iv.dom.extent) for iv in pool.iter_vars}
    size = tuple(int(d) for d in image.shape)
    out = tuple(extents[v] for v in store.indices)
    _need(is_same(at[0], store.indices[0]) and is_same(at[3], store.indices[3]), "channels or images move")
    taps = [_taps(at[i], store.indices[i], windows[i - 1].var, (size[i], out[i])) for i in (1, 2)]
    kernel = tuple(extents[iv.var] for iv in windows)
    for i, (stride, before) in enumerate(taps):
        last = (out[i + 1] - 1) * stride - before
        _need(before < kernel[i] and last < size[i + 1] and stride <= kernel[i], "a window of padding alone, or gaps")
    front = Workload.of(blocks.until(func, image), 1)
    strides, befores = zip(*taps, strict=True)
    return Pooled(front, (size[1], size[2]), (out[1], out[2]), (kernel[0], kernel[1]), strides, befores)


def _unpadded(blocks: Blocks, read: Any, axes: Sequence[Any]) -> tuple[Any, list[Any]]:
    """What is read behind a padding with the least number, and where."""
    block = blocks.made.get(read.source)
    value = block.body.value if block is not None else None
    if not isinstance(value, ir.Call) or "if_then_else" not in str(value.op):
        return read.source, list(read.indices)
    condition, load, outside = value.args
    dtype = str(read.source.dtype)
    least = -math.inf if dtype not in BYTES else np.iinfo(dtype).min
    is_number = isinstance(outside, tirx.FloatImm | tirx.IntImm)
    _need(is_number and outside.value == least, "the padding is not the least number")
    _need(isinstance(load, ir.TensorLoad), "something is computed on the way")
    assert block is not None
    own = dict(zip(block.body.indices, read.indices, strict=True))
    at = [substitute(index, own) for index in load.indices]
    analyzer = sym.Analyzer()
    for iv in axes:
        analyzer.bind(iv.var, iv.dom)
    shape = [int(d) for d in load.source.shape]
    # what lies outside cannot be read, so that only "inside means read" is left to be shown
    with analyzer.constraint_scope(tirx.all(*[tirx.all(i >= 0, i < s) for i, s in zip(at, shape, strict=True)])):
        _need(analyzer.can_prove(substitute(condition, own)), "the padding reaches into the image")
    return load.source, at


def _narrow(blocks: Blocks, buffer: Any) -> Any:
    """The tensor of 16 bits of which `buffer` is a copy in more."""
    block = blocks.made.get(buffer)
    value = block.body.value if block is not None else None
    if block is not None and isinstance(value, tirx.Cast) and isinstance(value.value, ir.TensorLoad):
        load = value.value
        same = all(is_same(i, j) for i, j in zip(load.indices, block.body.indices, strict=True))
        if same and str(load.source.dtype) in HALVES:
            return load.source
    return buffer


def _check_result(blocks: Blocks, maxima: Any) -> None:
    """The maxima are the result, or are only rounded to it."""
    output = blocks.params[-1]
    if maxima.same_as(output):
        return
    block = blocks.made.get(output)
    _need(block is not None, "the result is not written")
    assert block is not None
    value = block.body.value
    value = value.value if isinstance(value, tirx.Cast) else value
    _need(isinstance(value, ir.TensorLoad) and value.source.same_as(maxima), "the maxima are not the result")
    _need(
        all(is_same(i, j) for i, j in zip(value.indices, block.body.indices, strict=True)), "the result is rearranged"
    )


def _taps(index: Any, output: Any, tap: Any, sizes: tuple[int, int]) -> tuple[int, int]:
    """Stride, and how far the first window begins before the image."""
    analyzer = sym.Analyzer()

    def value(i: int, j: int) -> int:
        found = analyzer.simplify(substitute(index, {output: tirx.const(i, "int64"), tap: tirx.const(j, "int64")}))
        _need(isinstance(found, tirx.IntImm), "a window is indexed otherwise")
        return int(found)

    origin = value(0, 0)
    stride = value(1, 0) - origin if sizes[1] > 1 else 1
    again = output * tirx.const(stride, "int64") + tap + tirx.const(origin, "int64")
    _need(analyzer.can_prove_equal(index - again, tirx.const(0, "int64")), "a window is indexed otherwise")
    _need(stride >= 1 and origin <= 0, "a window is indexed otherwise")
    return stride, -origin
