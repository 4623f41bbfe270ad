"""Weights that no product of integers has taken become floats when the model is compiled.

    dequantize(q, scale, zero)  ->  scale * (q - zero)        of constants

Their bytes are a quarter or an eighth as many, and kernels that read weights packed would find them here: of blocks as
`reshape(dequantize(q, scale, zero, axis=0))`, whose rows are the blocks. Of the kernels there are, none multiplies what
it has to dequantise first.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm.ir import Call

from subtune.passes.exprs import Expr, array_of, dtype_of, make_const, op_name
from subtune.passes.fold_constants import FOLD
from subtune.passes.rewriter import Walk, merged, rewrite


def dequantize_now(walk: Walk, call: Call) -> Expr | None:
    """The rule: as `legalize_dequantize` computes it, to the bit."""
    values, scale, zero = map(array_of, call.args)
    if values is None or scale is None or zero is None or dtype_of(call) != "float32":
        return None
    dims = [-1 if axis == int(call.attrs.axis) % max(values.ndim, 1) else 1 for axis in range(values.ndim)]
    step, point = (part if part.size == 1 else part.reshape(dims) for part in (scale, zero))
    made = (values.astype(np.int32) - point.astype(np.int32)).astype(np.float32) * step.astype(np.float32)
    return make_const(made.reshape(values.shape))


def float_weights(mod: tvm.IRModule) -> tvm.IRModule:
    """Constants that are still dequantised -> constants of floats."""
    rules = {"relax.dequantize": (dequantize_now,)}
    return rewrite(mod, merged(rules, FOLD)) if _dequantizes(mod) else mod


def _dequantizes(mod: tvm.IRModule) -> bool:
    bindings = (binding for block in mod["main"].body.blocks for binding in block.bindings)
    return any(op_name(binding.value) == "relax.dequantize" for binding in bindings)
