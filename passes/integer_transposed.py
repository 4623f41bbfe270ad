"""Transposed convolutions of what was quantised, as ordinary ones of the integers (`layout_conv_transpose`).

    conv_transpose(dequantize(x), dequantize(w))  ->  depth_to_space(conv(dequantize(x), dequantize(w')))

w' are the taps of w in another order, filled with numbers that stand for 0, each with the scale of its output channel.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from tvm import relax
from tvm.ir import Call

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import BYTES
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const
from subtune.passes.integer_operands import Quantised, quantised, read_quantised
from subtune.passes.layout_conv_transpose import convolutions
from subtune.passes.rewriter import Walk

TRANSPOSED = tuple(f"relax.nn.conv{n}d_transpose" for n in (1, 2, 3))


def transposed_integers(walk: Walk, call: Call) -> Expr | None:
    """The rule: convolutions of dequantised operands, which become products of integers in their turn."""
    made = convolutions_of_integers(walk, call)
    return None if isinstance(made, NotApplicable) else made


def convolutions_of_integers(walk: Walk, call: Call) -> Expr | NotApplicable:
    """The same; or why there are none, a sentence."""
    x = read_quantised(walk, call.args[0])
    if isinstance(x, NotApplicable):
        return NotApplicable(f"its input {x.reason}")
    if dtype_of(x.values) not in BYTES:
        return NotApplicable(f"its input is {dtype_of(x.values)}, and products are of bytes")
    if not x.is_whole:
        return NotApplicable("its input has a scale for each channel")
    weight = quantised(walk, call.args[1])
    bits = None if weight is None else array_of(weight.values)
    if weight is None or bits is None:
        return NotApplicable("its weights are no quantised constants")
    numbers = _numbers(weight, bits)
    if numbers is None:
        return NotApplicable("its weights are no bytes with a scale for all or for each output channel")
    groups = int(call.attrs.groups)
    made = convolutions(call, numbers, partial(_operand, weight.scale.reshape(-1), groups))
    return NotApplicable("its geometry is that of no ordinary convolution") if made is None else made


def _numbers(weight: Quantised, bits: np.ndarray) -> np.ndarray | None:
    """The weights [I, O / groups, k...] without their zero point, as int8."""
    if not weight.is_whole and weight.axis != 1:
        return None
    dims = [-1 if axis == 1 else 1 for axis in range(bits.ndim)]
    zero = weight.zero.astype(np.int32).reshape(dims if weight.zero.size > 1 else ())
    wide = bits.astype(np.int32) - zero
    limits = np.iinfo(np.int8)
    held = wide.size and wide.min() >= limits.min and wide.max() <= limits.max
    return wide.astype(np.int8) if held else None


def _operand(scale: np.ndarray, groups: int, kernel: np.ndarray, pixels: int) -> Expr:
    """A kernel's integers, dequantised: the scales come again for every group and every pixel between the strides."""
    scales = scale.reshape(()) if scale.size == 1 else np.tile(scale, groups * pixels)
    zero = np.zeros(scales.shape, np.int8)
    return relax.op.dequantize(*map(make_const, (kernel, scales, zero)), axis=0, out_dtype="float32")
