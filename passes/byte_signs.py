"""Activations of bytes get the sign with which a processor's products are the cheapest.

    quantize(x, s, z): int8                         ->  turned(quantize(x, s, z + 128): uint8)
    dequantize(turned(q), s, z)                     ->  dequantize(q, s, z + 128)
    astype(turned(q), int32)                        ->  astype(q, int32) - 128
    (astype(q, int32) - a) - b                      ->  astype(q, int32) - (a + b)

turned(q) = astype(q ^ 128, int8) is left where nothing of that reads it: at the model's results. And so from uint8 to
int8, with -128 in place of 128.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.forms import ANY, Forms
from subtune.passes.exprs import Expr, array_of, dtype_of, make_const
from subtune.passes.integer_operands import SIGN, flipped, quantises
from subtune.passes.rewriter import Walk, rewrite


def byte_signs(mod: tvm.IRModule, forms: Forms = ANY) -> tvm.IRModule:
    """`mod` with activations of the type that `forms` wants."""
    if not forms.byte_rows or not quantises(mod):
        return mod
    turn = _Turn("int8", "uint8", SIGN) if forms.byte_rows == "uint8" else _Turn("uint8", "int8", -SIGN)
    return rewrite(
        mod,
        {
            "relax.quantize": (turn.quantised,),
            "relax.dequantize": (turn.read,),
            "relax.astype": (turn.widened,),
            "relax.subtract": (_shifted_once,),
        },
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """From bytes of the one type to those of the other, which are `more`."""

    given: str
    wanted: str
    more: int

    def quantised(self, _walk: Walk, call: Call) -> Expr | None:
        zero = array_of(call.args[2])
        if dtype_of(call) != self.given or zero is None:
            return None
        axis = int(call.attrs.axis)
        made = relax.op.quantize(call.args[0], call.args[1], self._moved(zero), axis=axis, out_dtype=self.wanted)
        return flipped(made, self.wanted)

    def read(self, walk: Walk, call: Call) -> Expr | None:
        bits, zero = self._turned(walk, call.args[0]), array_of(call.args[2])
        if bits is None or zero is None or str(zero.dtype) != self.given:
            return None
        return relax.op.dequantize(
            bits, call.args[1], self._moved(zero), axis=int(call.attrs.axis), out_dtype=dtype_of(call)
        )

    def widened(self, walk: Walk, call: Call) -> Expr | None:
        bits = self._turned(walk, call.args[0])
        if bits is None or dtype_of(call) != "int32":
            return None
        return relax.op.subtract(relax.op.astype(bits, "int32"), make_const(np.array(self.more, np.int32)))

    def _turned(self, walk: Walk, expr: Expr) -> Expr | None:
        """q where `expr` is turned(q)."""
        cast = walk.defined_by(expr, "relax.astype")
        bits = None if cast is None or dtype_of(cast) != self.given else walk.defined_by(cast.args[0], _XOR)
        sign = None if bits is None else array_of(bits.args[1])
        is_sign = sign is not None and str(sign.dtype) == self.wanted and bool(np.all(sign.view(np.uint8) == SIGN))
        return bits.args[0] if bits is not None and is_sign else None

    def _moved(self, zero: np.ndarray) -> Expr:
        return make_const((zero.astype(np.int32) + self.more).astype(self.wanted))


_XOR = "relax.bitwise_xor"


def _shifted_once(walk: Walk, call: Call) -> Expr | None:
    before, second = walk.defined_by(call.args[0], "relax.subtract"), array_of(call.args[1])
    first = None if before is None else array_of(before.args[1])
    if before is None or first is None or second is None or dtype_of(call) != "int32":
        return None
    return relax.op.subtract(before.args[0], make_const(np.asarray(first + second, np.int32)))
