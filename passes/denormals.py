"""Whether denormal numbers may count as zero in a model.

They are smaller than 1.2e-38 (float32), and x86 takes a hundred times as long for them. Sums and products of something
so small are small, and added to anything else it is lost in rounding. It is seen where a function makes much of little:
a logarithm, a divisor, a comparison. And by who reads probabilities, and takes their logarithm himself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.passes.exprs import Expr, array_of, dtype_of, is_const, is_float, op_name, scalar_of
from subtune.passes.opkind import CONTRACTIONS, LOOKUPS, MOVEMENTS, NORMALIZATIONS, POOLINGS, names

_LOST_IN = 1e-30
"""A denormal added to a number of this size at least changes no bit of it."""

_EXPONENTIALS = names("exp sigmoid nn.softmax")
"""Their results may be denormal where nothing else is."""
_LITTLE_FROM_LITTLE = _EXPONENTIALS.union(
    CONTRACTIONS, POOLINGS, MOVEMENTS, LOOKUPS,
    names(
        "abs add clip cos erf maximum minimum multiply negative round sin square subtract tanh where max mean min sum "
        "nn.gelu nn.gelu_tanh nn.leakyrelu nn.log_softmax nn.prelu nn.relu nn.selu nn.silu nn.softplus variance "
        "image.resize2d image.resize3d"
    ),
)  # fmt: skip
"""Nobody sees by their results whether something denormal was zero: those differ as little, or not at all."""
_OF_ONE_SIZE = MOVEMENTS | names("astype divide multiply negative where maximum minimum clip nn.relu")
"""A result is as small as an operand."""


def hides_denormals(mod: tvm.IRModule) -> bool:
    """Whether the results of `main`, normalised, differ by next to nothing when all denormal numbers in it are zero.

    An operator that is not known here is taken to make much of them.
    """
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    if not all(isinstance(binding, relax.VarBinding) for binding in bindings):
        return False
    values = {binding.var: binding.value for binding in bindings}
    if not all(_hides(value, values.get) for value in values.values()):
        return False
    return not _may_be_exponential(main.body.body, values.get, set())


def _hides(value: Expr, bound: Callable[[Any], Any]) -> bool:
    name = op_name(value).removeprefix("relax.")
    if not name:  # a tuple, a part of one, a constant or another variable
        return not isinstance(value, tvm.ir.Call | relax.If | relax.Function)
    if name in _LITTLE_FROM_LITTLE or all(_is_whole(arg) for arg in value.args):
        return True
    if name in NORMALIZATIONS:
        return float(value.attrs.epsilon) >= _LOST_IN
    if name == "astype":
        return dtype_of(value) != "bool"
    if name == "divide":
        return _is_large(value.args[1], bound)
    if name in ("sqrt", "rsqrt"):
        return _is_large(value.args[0], bound)
    if name == "power":
        exponent = scalar_of(value.args[1])
        return exponent is not None and exponent >= 1
    return False


def _is_whole(arg: Expr) -> bool:
    """Whether it is a tensor of no floats."""
    dtype = dtype_of(arg) if isinstance(arg, tvm.ir.Var) or is_const(arg) else ""
    return bool(dtype) and not is_float(dtype)


def _is_large(expr: Expr, bound: Callable[[Any], Any]) -> bool:
    """Whether a denormal part of it does not count: a constant that is no denormal, or a sum with such a one."""
    if is_const(expr):
        array = array_of(expr)
        return array is not None and bool((np.abs(array.astype(np.float64)) >= _LOST_IN).all())
    value = bound(expr)
    if op_name(value) in ("relax.add", "relax.maximum"):
        return any(is_const(arg) and _is_large(arg, bound) for arg in value.args)
    if op_name(value) in ("relax.sqrt", "relax.reshape", "relax.broadcast_to"):
        return _is_large(value.args[0], bound)
    return False


def _may_be_exponential(expr: Expr, bound: Callable[[Any], Any], seen: set[Any]) -> bool:
    """Whether a result is an exponential, save for its place and a factor."""
    if isinstance(expr, tvm.ir.Var):
        if expr in seen:
            return False
        seen.add(expr)
        value = bound(expr)
        return value is not None and _may_be_exponential(value, bound, seen)
    if isinstance(expr, tvm.ir.Tuple):
        return any(_may_be_exponential(part, bound, seen) for part in expr.fields)
    if isinstance(expr, tvm.ir.TupleGetItem):
        return _may_be_exponential(expr.tuple_value, bound, seen)
    name = op_name(expr).removeprefix("relax.")
    if name in _OF_ONE_SIZE:
        return any(_may_be_exponential(arg, bound, seen) for arg in expr.args)
    return name in _EXPONENTIALS
