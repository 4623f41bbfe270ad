"""Constants of float32 that a half holds exactly, kept as halves where that halves what a kernel reads.

    layer_norm(astype(x16), g, b)  ->  layer_norm(astype(x16), astype(g16), astype(b16))

A file of halves is computed in float32 between its products, so its constants are widened: these were halves before.
A row that is normalised is shorter than scale and shift together, which every row needs.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.numerics import HALVES
from subtune.passes.exprs import Expr, array_of, dtype_of, is_uniform, make_const, op_name
from subtune.passes.rewriter import Rules, Walk, rewrite

_FULL = "float32"


def narrow_norm(walk: Walk, call: Call) -> Expr | None:
    """The rule on norms of halves."""
    half = _widened_from(walk, call.args[0])
    if not half:
        return None
    params = [_narrowed(arg, half) for arg in call.args[1:]]
    if all(param is None for param in params):
        return None
    wide = [arg if param is None else relax.op.astype(param, _FULL)
            for arg, param in zip(call.args[1:], params, strict=True)]  # fmt: skip
    return Call(call.op, [call.args[0], *wide], call.attrs, call.ty_args)


def _widened_from(walk: Walk, expr: Expr) -> str:
    """The half that `expr`, of float32, was a moment ago; "" where it was none."""
    view = walk.defined_by(expr, "relax.reshape")
    cast = walk.definition(expr if view is None else view.args[0])
    if op_name(cast) != "relax.astype" or dtype_of(cast) != _FULL:
        return ""
    half = dtype_of(cast.args[0])
    return half if half in HALVES else ""


def _narrowed(arg: Expr, half: str) -> Expr | None:
    """A constant in `half`, if it is none of equal numbers (which become literals) and nothing is rounded."""
    array = array_of(arg)
    if array is None or array.dtype != np.float32 or is_uniform(array):
        return None
    halved = array.astype(half)
    return make_const(halved) if np.array_equal(halved.astype(np.float32), array, equal_nan=True) else None


CONSTANTS: Rules = {
    "relax.nn.layer_norm": (narrow_norm,),
    "relax.nn.rms_norm": (narrow_norm,),
}


def narrow_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """Scales and shifts of norms that are halves in float32 -> halves."""
    return rewrite(mod, CONSTANTS)
