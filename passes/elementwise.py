"""Operators that compute every element by itself: whatever only moves elements may pass through them."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.ir import Call

from subtune.passes.exprs import Expr, shape_of

UNARY = frozenset(
    "relax." + name
    for name in (
        "abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh exp floor log logical_not negative round rsqrt "
        "sigmoid sign sin sinh square sqrt tan tanh trunc clip erf isfinite isinf isnan astype "
        "nn.relu nn.relu6 nn.leakyrelu nn.gelu nn.gelu_tanh nn.selu nn.silu nn.softplus quantize dequantize"
    ).split()
)
"""One tensor operand, first; numbers may follow it, where `has_one_tensor`."""

BINARY = frozenset(
    "relax." + name
    for name in (
        "add subtract multiply divide floor_divide power maximum minimum equal not_equal less less_equal greater "
        "greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor mod floor_mod atan2 "
        "log_add_exp left_shift right_shift"
    ).split()
)
"""Two tensor operands that broadcast as numpy's do."""

TERNARY = frozenset({"relax.where", "relax.ewise_fma"})


def has_one_tensor(call: Call) -> bool:
    """Whether no vector follows the first operand: a quantisation may have one scale a channel."""
    return not any(shape_of(arg) for arg in call.args[1:])


def rebuilt(call: Call, tensors: Sequence[Expr]) -> Expr:
    """The call on other tensors of other shapes: its type is inferred anew, its other operands stay."""
    return tvm.ir.Call(call.op, [*tensors, *list(call.args)[len(tensors) :]], call.attrs, call.ty_args)
