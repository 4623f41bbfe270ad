"""Activations of int8 become uint8, for processors that multiply unsigned bytes with signed ones.

    quantize(x, s, z): int8                         ->  signed(quantize(x, s, z + 128): uint8)
    dequantize(signed(q), s, z)                     ->  dequantize(q, s, z + 128)
    astype(signed(q), int32)                        ->  astype(q, int32) - 128
    (astype(q, int32) - a) - b                      ->  astype(q, int32) - (a + b)

signed(q) = astype(q ^ 128, int8) is left where nothing of that reads it: at the model's results.
"""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.forms import ANY, Forms
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const
from subtune.passes.integer_operands import SIGN, flipped, quantises
from subtune.passes.rewriter import Walk, rewrite


def unsigned_bytes(mod: tvm.IRModule, forms: Forms = ANY) -> tvm.IRModule:
    """`mod` with unsigned activations, where `forms` wants them."""
    if not forms.unsigned_bytes or not quantises(mod):
        return mod
    return rewrite(
        mod,
        {
            "relax.quantize": (_quantised_unsigned,),
            "relax.dequantize": (_read_unsigned,),
            "relax.astype": (_widened_unsigned,),
            "relax.subtract": (_shifted_once,),
        },
    )


def _quantised_unsigned(_walk: Walk, call: Call) -> Expr | None:
    zero = array_of(call.args[2])
    if dtype_of(call) != "int8" or zero is None:
        return None
    axis = int(call.attrs.axis)
    made = relax.op.quantize(call.args[0], call.args[1], _moved(zero), axis=axis, out_dtype="uint8")
    return flipped(made)


def _read_unsigned(walk: Walk, call: Call) -> Expr | None:
    unsigned, zero = _signed(walk, call.args[0]), array_of(call.args[2])
    if unsigned is None or zero is None or str(zero.dtype) != "int8":
        return None
    return relax.op.dequantize(
        unsigned, call.args[1], _moved(zero), axis=int(call.attrs.axis), out_dtype=dtype_of(call)
    )


def _widened_unsigned(walk: Walk, call: Call) -> Expr | None:
    unsigned = _signed(walk, call.args[0])
    if unsigned is None or dtype_of(call) != "int32":
        return None
    return relax.op.subtract(relax.op.astype(unsigned, "int32"), make_const(np.array(SIGN, np.int32)))


def _shifted_once(walk: Walk, call: Call) -> Expr | None:
    before, second = walk.defined_by(call.args[0], "relax.subtract"), array_of(call.args[1])
    first = None if before is None else array_of(before.args[1])
    if before is None or first is None or second is None or dtype_of(call) != "int32":
        return None
    return relax.op.subtract(before.args[0], make_const(np.asarray(first + second, np.int32)))


def _signed(walk: Walk, expr: Expr) -> Expr | None:
    """q where `expr` is signed(q)."""
    cast = walk.defined_by(expr, "relax.astype")
    bits = None if cast is None or dtype_of(cast) != "int8" else walk.defined_by(cast.args[0], "relax.bitwise_xor")
    sign = None if bits is None else array_of(bits.args[1])
    is_sign = sign is not None and str(sign.dtype) == "uint8" and bool(np.all(sign == SIGN))
    return bits.args[0] if bits is not None and is_sign else None


def _moved(zero: np.ndarray) -> Expr:
    return make_const((zero.astype(np.int32) + SIGN).astype(np.uint8))
