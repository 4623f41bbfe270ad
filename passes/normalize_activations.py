"""Activations that exporters write out, as the one operator they are.

0.5 * x * (1 + erf(x / sqrt(2)))                            ->  gelu(x)
0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))   ->  gelu_tanh(x)
x * sigmoid(x)                                              ->  silu(x)
exp(x - max(x)) / sum(exp(x - max(x)))                      ->  softmax(x)
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, dtype_of, ints, is_float, op_name, positive_axis, scalar_of, shape_of
from subtune.passes.products import close, factors, polynomial, same
from subtune.passes.rewriter import Rules, Walk, rewrite

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)


def recognise_product(walk: Walk, call: Call) -> Expr | None:
    """The rule on multiplications and divisions."""
    if not is_float(dtype_of(call)) or shape_of(call) is None:
        return None
    number, tensors = factors(walk, call)
    if len(tensors) != 2:
        return None
    for x, gate in (tensors, reversed(tensors)):
        if shape_of(x) != shape_of(call):
            continue
        found = walk.definition(gate)
        if op_name(found) == "relax.sigmoid" and number == 1.0 and same(walk, found.args[0], x):
            return relax.op.nn.silu(x)
        if close(walk, number, 0.5, call):
            inner = _one_plus(walk, found)
            if inner is not None and _is_gelu_erf(walk, inner, x):
                return relax.op.nn.gelu(x)
            if inner is not None and _is_gelu_tanh(walk, inner, x):
                return relax.op.nn.gelu_tanh(x)
    return None


def _one_plus(walk: Walk, found: Expr) -> Expr | None:
    """f of `1 + f`."""
    if op_name(found) != "relax.add":
        return None
    for one, other in (found.args, reversed(found.args)):
        if scalar_of(one) == 1.0:
            return walk.definition(other)
    return None


def _is_gelu_erf(walk: Walk, inner: Expr, x: Expr) -> bool:
    if op_name(inner) != "relax.erf":
        return False
    terms = polynomial(walk, inner.args[0], x)
    return terms is not None and set(terms) == {1} and close(walk, terms[1], math.sqrt(0.5), x)


def _is_gelu_tanh(walk: Walk, inner: Expr, x: Expr) -> bool:
    if op_name(inner) != "relax.tanh":
        return False
    terms = polynomial(walk, inner.args[0], x)
    if terms is None or set(terms) != {1, 3}:
        return False
    return close(walk, terms[1], _SQRT_2_OVER_PI, x) and close(walk, terms[3], _SQRT_2_OVER_PI * 0.044715, x)


def recognise_softmax(walk: Walk, call: Call) -> Expr | None:
    """The rule on the division."""
    exp = walk.defined_by(call.args[0], "relax.exp")
    total = walk.defined_by(call.args[1], "relax.sum")
    if exp is None or total is None or not total.args[0].same_as(call.args[0]):
        return None
    axis = _single_axis(total)
    shifted = walk.defined_by(exp.args[0], "relax.subtract")
    if axis is None or shifted is None:
        return None  # without the shift it overflows where softmax does not
    peak = walk.defined_by(shifted.args[1], "relax.max")
    if peak is None or not peak.args[0].same_as(shifted.args[0]) or _single_axis(peak) != axis:
        return None
    return relax.op.nn.softmax(shifted.args[0], axis)


def _single_axis(reduction: Any) -> int | None:
    """The one axis a reduction with kept dims reduces, or None."""
    if reduction.attrs.axis is None or not reduction.attrs.keepdims or shape_of(reduction) is None:
        return None
    axes = ints(reduction.attrs.axis)
    return positive_axis(axes[0], len(reduction.ty.shape)) if len(axes) == 1 else None


ACTIVATIONS: Rules = {
    "relax.multiply": (recognise_product,),
    "relax.divide": (recognise_softmax, recognise_product),
}


def recognise_activations(mod: tvm.IRModule) -> tvm.IRModule:
    """GELU, SiLU and softmax that were written out -> one operator each."""
    return rewrite(mod, ACTIVATIONS)
