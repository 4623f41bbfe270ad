"""Products and convolutions of bytes with zero points, as sums of int32 and what corrects them:

    (a - za) (b - zb)  ->  a b - za colsum(b) - zb rowsum(a) + k za zb          k: numbers in a sum

What is constant of that is one vector. A sum of bytes that are not constant is a kernel of its own, which reads them
once more. Of convolutions a zero point of what is padded is the padding, and rowsum(a) is that of the windows.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call

from subtune.core.kernel import NotApplicable
from subtune.passes.exprs import CONVOLUTIONS, Expr, array_of, convolved, dtype_of, ints, make_const, op_name, shape_of
from subtune.passes.integer_operands import Operand, operand, signed
from subtune.passes.rewriter import Walk

_SAVED = 0.75
"""Of a multiplication in float32 or int32 what one of bytes saves: an instruction has four times as many of them."""


def product_of_integers(walk: Walk, call: Call) -> Expr | NotApplicable:
    """The call on bytes: int32 where it was that, else the sums in float32 times the scales; or why not, a sentence."""
    dtype = dtype_of(call)
    if dtype not in ("float32", "int32"):
        return NotApplicable(f"it is of {dtype}")
    is_conv = op_name(call) in CONVOLUTIONS
    ranks = [len(shape_of(arg) or ()) for arg in call.args[:2]]
    if not is_conv and min(ranks) < 2:
        return NotApplicable("it multiplies vectors")
    names = ("its input", "its weights") if is_conv else ("its first operand", "its second operand")
    sides = _conv_axes(call, ranks) if is_conv else ((ranks[0] - 1,), (ranks[1] - 2,))
    operands = []
    for arg, name, summed in zip(call.args[:2], names, sides, strict=True):
        found = operand(walk, arg, dtype, summed)
        if isinstance(found, NotApplicable):
            return NotApplicable(f"{name} {found.reason}")
        operands.append(found)
    a, b = operands[0], signed(walk, operands[1])
    if a.scale.size > 1:
        return NotApplicable(f"{names[0]} has a scale for each channel")
    if b.scale.size > 1 and not is_conv and b.axis != ranks[1] - 1:
        return NotApplicable(f"{names[1]} has a scale for each matrix")
    acc = _convolution(call, a, b) if is_conv else _matmul(call, a, b)
    if isinstance(acc, NotApplicable) or dtype == "int32":
        return acc
    axis = str(call.attrs.out_layout).index("C") if is_conv else len(shape_of(call) or ()) - 1
    factor = along(a.scale.reshape(-1) * b.scale.reshape(-1), axis, call)
    return relax.op.multiply(relax.op.astype(acc, "float32"), factor)


def along(vector: np.ndarray, axis: int, call: Call) -> Expr:
    """One number, or one for each element along `axis` of the result."""
    rank = len(shape_of(call) or ())
    return make_const(
        vector.reshape(()) if vector.size == 1 else vector.reshape([-1 if a == axis else 1 for a in range(rank)])
    )


def _conv_axes(call: Call, ranks: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of the input, all of which have one zero point, and those of the weights that are summed."""
    columns = str(call.attrs.kernel_layout).index("O")
    return tuple(range(ranks[0])), tuple(axis for axis in range(ranks[1]) if axis != columns)


def _matmul(call: Call, a: Operand, b: Operand) -> Expr | NotApplicable:
    (*_, rows, k), (*_, columns) = (shape_of(arg) or () for arg in call.args[:2])
    read = (b.zero is not None and a.bits is None) / columns + (a.zero is not None and b.bits is None) / rows
    if read > _SAVED:
        return NotApplicable("the sums that correct its zero points cost more than bytes save")
    acc = relax.op.matmul(a.values, b.values, out_dtype="int32")
    terms = []
    if a.zero is not None:
        inner = _sum(b, -2)
        inner = inner if b.zero is None else _less(inner, _times(b.zero, np.int32(k)))
        terms.append(_times(a.zero, inner))
    if b.zero is not None:
        terms.append(_times(b.zero, _sum(a, -1)))
    return _corrected(acc, terms)


def _convolution(call: Call, a: Operand, b: Operand) -> Expr | NotApplicable:
    x = _padded(a, call)
    if isinstance(x, NotApplicable):
        return x
    if b.zero is not None and int(call.attrs.groups) > 1:
        wider = _in_words(b)
        if isinstance(wider, NotApplicable):
            return wider
        b = wider
    whole = {} if x is a.values else {"padding": 0}
    acc = convolved(call, x, b.values, out_dtype="int32", **whole)
    layout, columns = str(call.attrs.kernel_layout), str(call.attrs.kernel_layout).index("O")
    summed, out = tuple(a for a in range(len(layout)) if a != columns), str(call.attrs.out_layout).index("C")
    bits, zero = b.bits, np.zeros((), np.int32) if b.zero is None else array_of(b.zero)
    terms = []
    if a.zero is not None:
        if bits is None or zero is None:
            return NotApplicable("its input has a zero point and its weights are not constant")
        filters = (bits.astype(np.int32) - zero).sum(summed, dtype=np.int32)
        terms.append(_times(a.zero, array_of(along(filters, out, call))))
    if b.zero is not None:
        if zero is None:
            return NotApplicable("its weights have a zero point that is not constant")
        terms.append(_times(_window_sums(call, x, whole), array_of(along(zero.reshape(-1), out, call))))
    return _corrected(acc, terms)


def _in_words(b: Operand) -> Operand | NotApplicable:
    """Weights without their zero point in int16: the windows of groups are no products of bytes in any case."""
    bits, zero = b.bits, b.zero_array
    if bits is None or zero is None:
        return NotApplicable("its weights have a zero point that is not constant")
    return replace(b, values=make_const((bits.astype(np.int32) - zero).astype(np.int16)), zero=None)


def _window_sums(call: Call, x: Expr, whole: dict[str, Any]) -> Expr:
    """The sum of all that a result of the convolution reads: of the channels first, then of the window."""
    channels, weight = str(call.attrs.data_layout).index("C"), shape_of(call.args[1]) or ()
    total = relax.op.sum(relax.op.astype(x, "int32"), axis=channels, keepdims=True)
    dims = [1 if letter in "OI" else weight[axis] for axis, letter in enumerate(str(call.attrs.kernel_layout))]
    is_padded = not whole and any(ints(call.attrs.padding))
    if prod(dims) == 1 and set(ints(call.attrs.strides)) == {1} and not is_padded:
        return total
    return convolved(call, total, make_const(np.ones(dims, np.int32)), out_dtype="int32", **whole)


def is_window_sum(call: Call) -> bool:
    """Whether a convolution is one of `_window_sums`, which no model has."""
    ones = array_of(call.args[1])
    return op_name(call) in CONVOLUTIONS and ones is not None and ones.dtype == np.int32 and bool(np.all(ones == 1))


def _padded(a: Operand, call: Call) -> Expr | NotApplicable:
    """A convolution's input with its padding, where that is not of zeros."""
    padding, layout, x = ints(call.attrs.padding), str(call.attrs.data_layout), a.values
    if a.zero is None or not any(padding):
        return x
    half, widths = len(padding) // 2, []
    spatial = [letter for letter in layout if letter not in "NC"]
    for letter in layout:
        at = spatial.index(letter) if letter in spatial else -1
        widths += [padding[at], padding[half + at]] if at >= 0 else [0, 0]
    zero = array_of(a.zero)
    if zero is None:
        image = [1 if letter in "NC" else extent for letter, extent in zip(layout, shape_of(x) or (), strict=True)]
        inside = np.pad(np.ones(image, bool), np.reshape(widths, (-1, 2)))
        plain = relax.op.nn.pad(x, widths, "constant", 0.0)
        return relax.op.where(make_const(inside), plain, relax.op.astype(a.zero, dtype_of(x)))
    limits = np.iinfo(dtype_of(x))
    if not limits.min <= int(zero.reshape(())) <= limits.max:
        return NotApplicable(f"its input is padded, with a zero point beyond {dtype_of(x)}")
    return relax.op.nn.pad(x, widths, "constant", float(zero.reshape(())))


def _sum(side: Operand, axis: int) -> Any:
    """Of the bytes along an axis, which stays; an array where they are constant."""
    bits = side.bits
    if bits is not None:
        return bits.sum(axis, dtype=np.int32, keepdims=True)
    return relax.op.sum(relax.op.astype(side.values, "int32"), axis=axis, keepdims=True)


def _expr(value: Any) -> Expr:
    return make_const(np.asarray(value, np.int32)) if isinstance(value, np.ndarray | np.integer) else value


def _known(value: Any) -> Any:
    """An array where `value` is constant."""
    found = None if isinstance(value, np.ndarray | np.integer) else array_of(value)
    return value if found is None else found


def _times(x: Any, y: Any) -> Any:
    x, y = _known(x), _known(y)
    if isinstance(x, np.ndarray | np.integer) and isinstance(y, np.ndarray | np.integer):
        with np.errstate(over="ignore"):  # sums of int32 wrap
            return np.asarray(x * y, np.int32)
    return relax.op.multiply(_expr(x), _expr(y))


def _less(x: Any, y: Any) -> Any:
    x, y = _known(x), _known(y)
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return x - y
    return relax.op.subtract(_expr(x), _expr(y))


def _corrected(acc: Expr, terms: list[Any]) -> Expr:
    """acc minus the terms, those that are constant as one and last: a bias joins them."""
    for term in terms:
        if not isinstance(term, np.ndarray):
            acc = relax.op.subtract(acc, term)
    fixed = [term for term in terms if isinstance(term, np.ndarray)]
    if not fixed:
        return acc
    total = fixed[0] if len(fixed) == 1 else fixed[0] + fixed[1]
    return relax.op.add(acc, make_const(np.ascontiguousarray(-total)))
