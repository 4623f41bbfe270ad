"""A norm's scale and shift, folded into the weights of the product that alone reads it.

    matmul(layer_norm(x, g, b), W) + c   ->   matmul(layer_norm(x, 1, 0), g * W) + (b @ W + c)

and the same of RMSNorm, which has no shift. What is left of the norm reads nothing but its rows. Everything is computed
in float64 and rounded once.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, array_of, dtype_of, ints, is_float, make_const, op_name, positive_axis, shape_of
from subtune.passes.fold_batch_norm import merge_biases, rounded_once
from subtune.passes.rewriter import Rules, Walk, rewrite

NORM_OPS = ("relax.nn.layer_norm", "relax.nn.rms_norm")


def fold_norm(walk: Walk, call: Call) -> Expr | None:
    """The rule on `matmul`; a view that keeps the last axis may lie between."""
    data, weight = call.args
    view = walk.defined_by(data, "relax.reshape")
    normed = data if view is None else view.args[0]
    norm, array, shape = walk.definition(normed), array_of(weight), shape_of(data)
    if op_name(norm) not in NORM_OPS or array is None or array.ndim != 2 or shape is None:
        return None
    if not (walk.has_one_use(data) and walk.has_one_use(normed)) or not is_float(str(array.dtype)):
        return None
    dims = shape_of(normed)
    if dims is None or dims[-1] != shape[-1] or not is_over_last(norm, len(dims)):
        return None
    params = [array_of(arg) for arg in norm.args[1:]]
    if any(p is None for p in params):
        return None
    scale, *shift = (np.asarray(p).astype(np.float64).reshape(-1) for p in params)
    if (scale == 1.0).all() and not any(s.any() for s in shift):
        return None
    plain = [make_const(np.ones(scale.shape, dtype_of(norm.args[1])))]
    plain += [make_const(np.zeros(scale.shape, dtype_of(arg))) for arg in norm.args[2:]]
    result: Expr = Call(norm.op, [norm.args[0], *plain], norm.attrs, norm.ty_args)
    result = result if view is None else relax.op.reshape(result, view.args[1])
    product = Call(call.op, [result, make_const(rounded_once(array, scale[:, None]))], call.attrs, call.ty_args)
    if not any(s.any() for s in shift):
        return product
    bias = shift[0] @ array.astype(np.float64)
    return relax.op.add(product, make_const(bias.astype(dtype_of(call))))


def is_over_last(norm: Call, rank: int) -> bool:
    """Whether a norm of a tensor of `rank` dims is taken along the last one alone."""
    return [positive_axis(axis, rank) for axis in ints(norm.attrs.axes)] == [rank - 1]


NORMS: Rules = {"relax.matmul": (fold_norm,), "relax.add": (merge_biases,)}


def fold_norms(mod: tvm.IRModule) -> tvm.IRModule:
    """Scales and shifts of norms, into the weights of the one product that reads them."""
    return rewrite(mod, NORMS)
