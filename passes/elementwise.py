"""Operators that compute every element by itself: whatever only moves elements may pass through them."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.ir import Call

from subtune.core.numerics import BYTES
from subtune.passes.exprs import Expr, dtype_of, op_name, shape_of

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


WITH_LOOKUPS = UNARY | {"relax.take"}
"""Those of one tensor where `only_tensor` has one."""

_INDICES = ("uint8", "int16")
"""Of bytes, and of those with a sign when that has been added: no model has indices of these types."""


def has_one_tensor(call: Call) -> bool:
    """Whether no vector follows the first operand: a quantisation may have one scale a channel."""
    return not any(shape_of(arg) for arg in call.args[1:])


def is_lookup(call: Expr) -> bool:
    """Whether a `take` looks single bytes up: it computes every element by itself."""
    if op_name(call) != "relax.take" or shape_of(call.args[0]) != (256,):
        return False
    return dtype_of(call.args[0]) in BYTES and dtype_of(call.args[1]) in _INDICES


def only_tensor(call: Call) -> Expr | None:
    """The tensor of which every element is computed by itself, all else being numbers and tables."""
    if op_name(call) == "relax.take":
        return call.args[1] if is_lookup(call) else None
    return call.args[0] if has_one_tensor(call) else None


def on_other(call: Call, tensor: Expr) -> Expr:
    """The call on another `only_tensor`."""
    if op_name(call) == "relax.take":
        return tvm.ir.Call(call.op, [call.args[0], tensor], call.attrs, call.ty_args)
    return rebuilt(call, [tensor])


def rebuilt(call: Call, tensors: Sequence[Expr]) -> Expr:
    """The call on other tensors of other shapes: its type is inferred anew, its other operands stay."""
    return tvm.ir.Call(call.op, [*tensors, *list(call.args)[len(tensors) :]], call.attrs, call.ty_args)
