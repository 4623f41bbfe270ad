"""Channels that end between two 16-byte pieces: a copy with zeros behind them, which tensor cores can be fed from.

    conv2d(x [n, h, w, 394], w)  ->  conv2d(pad(x) [n, h, w, 400], pad(w))          of halves; of float32 396
    matmul(x [m, 2497], w)       ->  matmul(pad(x) [m, 2504], pad(w))

A kernel that fetches tiles by TMA, or 16 bytes at a time, needs rows that begin at multiples of 16 bytes. Without, each
element is fetched by an instruction of its own: on an H200 35 to 60 TFLOP/s of a convolution instead of 400, 175 of a
product. Where the data are turned to channels last, the copy is there anyway and its zeros cost nothing. So a network's
first convolution gets an even number of them, too: its windows begin at whole words (42 of 600 TFLOP/s without).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.forms import Forms
from subtune.core.numerics import HALVES
from subtune.passes.exprs import CONVOLUTIONS, Expr, array_of, convolved, dtype_of, make_const, op_name, shape_of
from subtune.passes.normalize_cleanup import permutation
from subtune.passes.rewriter import Rule, Walk, rewrite

_LEAST_CHANNELS = 9
"""Fewer are a network's first layer, which has schedules of its own where windows have two dims."""
_FEW = 4
"""Channels of a first layer are a multiple of these."""
_LEAST_COLUMNS = 16
"""Of a tensor core's tile: fewer are computed as many."""
_WORTH = 100
"""Multiplications of each element of the data that gain, at the rates above, what it costs to copy the element."""
_WORTH_TURNED = 16
"""The same where it is copied anyway."""
_LEAST_FLOPS = 1.5e8
"""A kernel more takes 2 us."""
_BEHIND_SOFTMAX = 5
"""Steps at most between a softmax and the product that reads it: casts, zeros in place of NaN, views."""
_LEAST_DEPTH = 257
"""Of a product of two results: what is shorter may be an attention's head, which wants its operands as they are."""


def align_channels(mod: tvm.IRModule, forms: Forms) -> tvm.IRModule:
    """Products whose rows are no multiples of `forms.half_row` halves or `forms.float_row` floats, of copies that are,
    where it pays."""
    multiples = {**dict.fromkeys(HALVES, forms.half_row), "float32": forms.float_row}
    if set(multiples.values()) == {1}:
        return mod

    def on_rows(rule: Callable[..., Expr | None]) -> Rule:
        def aligned(walk: Walk, call: Call) -> Expr | None:
            types = {dtype_of(arg) for arg in call.args[:2]}
            multiple = multiples.get(dtype_of(call.args[0]), 1)
            return rule(walk, call, multiple) if multiple > 1 and (len(types) == 1 or types <= HALVES) else None

        return aligned

    return rewrite(mod, {**dict.fromkeys(CONVOLUTIONS, (on_rows(_convolution),)), "relax.matmul": (on_rows(_product),)})


def _convolution(walk: Walk, call: Call, multiple: int) -> Expr | None:
    """The rule on convolutions, channels last, of constant weights."""
    data, attrs = call.args[0], call.attrs
    weight, shape, out = array_of(call.args[1]), shape_of(data), shape_of(call)
    is_last = str(attrs.data_layout).endswith("C") and str(attrs.kernel_layout).endswith("I")
    if weight is None or shape is None or out is None or not is_last:
        return None
    groups, channels = int(attrs.groups), weight.shape[-1]
    if channels % multiple == 0:
        return None
    per_element = prod(weight.shape[1:-1]) * max(out[-1] // groups, _LEAST_COLUMNS) * prod(out[:-1]) / prod(shape[:-1])
    if dtype_of(data) == "float32":
        is_worth_it = groups == 1 < channels and _pays(walk, data, per_element)
        more = -channels % multiple
        return _deepened(call, _padded(data, -1, more), weight, more) if is_worth_it else None
    if groups > 1:
        is_worth_it = channels >= _LEAST_CHANNELS and _pays(walk, data, per_element)
        more = -channels % multiple
        return _deepened(call, _padded_groups(walk, call, channels, more), weight, more) if is_worth_it else None
    if shape[-1] < _LEAST_CHANNELS and len(shape) == 4:
        is_turned = op_name(walk.definition(data)) == "relax.permute_dims"
        begins_odd = shape[-1] % 2 and int(attrs.strides[-1]) % 2 and prod(weight.shape[1:-1]) > 1
        more = -shape[-1] % _FEW
        is_worth_it = is_turned and begins_odd and shape[-1] > 1
        return _deepened(call, _padded(data, -1, more), weight, more) if is_worth_it else None
    if not _pays(walk, data, per_element):
        return None
    more = -shape[-1] % multiple
    return _deepened(call, _padded(data, -1, more), weight, more)


def _deepened(call: Call, data: Expr, weight: np.ndarray, more: int) -> Expr:
    """The convolution of data with zeros behind its channels, or behind every group's."""
    widths = [(0, 0)] * (weight.ndim - 1) + [(0, more)]
    return convolved(call, data, make_const(np.pad(weight, widths)))


def _padded_groups(walk: Walk, call: Call, channels: int, more: int) -> Expr:
    """What is convolved, with zeros behind every group; of data that are turned anyway by the copy that turns them."""
    data, groups = call.args[0], int(call.attrs.groups)
    shape = shape_of(data) or ()
    space = len(shape) - 2
    turned = walk.defined_by(data, "relax.permute_dims")
    if turned is not None and permutation(turned) == (0, *range(2, space + 2), 1):
        apart = walk.emit(relax.op.reshape(turned.args[0], (shape[0], groups, channels, *shape[1:-1])))
        apart = relax.op.permute_dims(apart, [0, *range(3, space + 3), 1, 2])
    else:
        apart = relax.op.reshape(data, (*shape[:-1], groups, channels))
    padded = walk.emit(_padded(walk.emit(apart), -1, more))
    return walk.emit(relax.op.reshape(padded, (*shape[:-1], groups * (channels + more))))


def _product(walk: Walk, call: Call, multiple: int) -> Expr | None:
    """The rule on products of rows with a constant matrix, or of two results, batch by batch."""
    left, right = call.args
    a, b = shape_of(left), shape_of(right)
    if a is None or b is None:
        return None
    if len(a) < 2 or a[-1] < _LEAST_CHANNELS or a[-1] % multiple == 0 or prod(a[:-1]) < _LEAST_COLUMNS:
        return None
    weight, more = array_of(right), -a[-1] % multiple
    if weight is not None and len(b) != 2:
        return None
    if weight is None and (a[:-2] != b[:-2] or a[-1] < _LEAST_DEPTH or not _is_worth_it(b, a[-2])):
        return None
    if weight is None and dtype_of(left) == "float32":
        return None  # elements copied one by one cost it less than two copies do
    if not _pays(walk, left, max(b[-1], _LEAST_COLUMNS)) or _is_attention(walk, left):
        return None
    other = _deeper(walk, right, more, multiple) if weight is None else make_const(np.pad(weight, [(0, more), (0, 0)]))
    return relax.op.matmul(_padded(left, -1, more), other, out_dtype=call.attrs.out_dtype)


def _deeper(walk: Walk, right: Expr, more: int, multiple: int) -> Expr:
    """The right operand [..., k, n] with zeros behind k; along k in memory, where rows of n would not begin well."""
    shape = shape_of(right) or ()
    across = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    turned = walk.defined_by(right, "relax.permute_dims")
    if turned is not None and permutation(turned) == across:
        return relax.op.permute_dims(_padded(turned.args[0], -1, more), across)
    if shape[-1] % multiple == 0:
        return _padded(right, -2, more)
    along_k = walk.emit(relax.op.permute_dims(right, across))
    return relax.op.permute_dims(_padded(along_k, -1, more), across)


def _is_attention(walk: Walk, weights: Expr) -> bool:
    """Whether `weights` are a softmax, perhaps rounded: what multiplies them is one kernel with it."""
    for _ in range(_BEHIND_SOFTMAX):
        found = walk.definition(weights)
        if op_name(found) == "relax.nn.softmax":
            return True
        if not isinstance(found, Call) or not found.args:
            return False
        weights = found.args[-1] if op_name(found) == "relax.where" else found.args[0]
    return False


def _pays(walk: Walk, data: Expr, per_element: float) -> bool:
    """Whether a copy of `data` with whole rows costs less than `per_element` multiplications of each element gain."""
    if op_name(walk.definition(data)) == "relax.permute_dims":
        return per_element >= _WORTH_TURNED
    shape = shape_of(data)
    return shape is not None and _is_worth_it(shape, per_element)


def _is_worth_it(shape: tuple[int, ...], per_element: float) -> bool:
    """The same of a copy that nobody else asks for."""
    return per_element >= _WORTH and 2 * per_element * prod(shape) >= _LEAST_FLOPS


def _padded(data: Expr, axis: int, more: int) -> Expr:
    rank = len(shape_of(data) or ())
    widths = [0] * (2 * rank)
    widths[2 * (axis % rank) + 1] = more
    return relax.op.nn.pad(data, widths)
