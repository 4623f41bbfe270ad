"""Products of what was quantised become products of the integers themselves (QDQ -> integer arithmetic).

    conv(s (x - z), t w) + t s b    ->   (conv(x, w) - z sum(w) + b) f          x, w of 8 bits, sums of int32, f = s t
    quantize((acc) f, scale, zero)  ->   round(acc (f / scale)) + zero          one multiplication, rounded once
    quantize(dequantize(q))         ->   q                                      of the same scale and zero point
    reshape(dequantize(q))          ->   dequantize(reshape(q))                 and whatever else only moves elements

A zero point of what is padded is the padding. One of constant weights is subtracted from them if they stay in 8 bits;
others are corrected for (`integer_sums`). That is what ONNX's QLinearConv and QLinearMatMul say, to the bit: f / scale
is the multiplier of float32 that ONNX Runtime's kernels have (contrib_ops and MLAS, `MlasRequantizeOutput`).
"""

from __future__ import annotations

from math import prod

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.kernel import NotApplicable
from subtune.core.numerics import BYTES, FLOAT8
from subtune.passes.exprs import CONVOLUTIONS, Expr, array_of, dtype_of, ints, make_const, op_name, shape_of, transposed
from subtune.passes.fold_constants import FOLD_BUT_INTEGERS
from subtune.passes.integer_operands import COPIES, MOVED, VIEWS, Quantised, quantised
from subtune.passes.integer_sums import product_of_integers
from subtune.passes.integer_transposed import TRANSPOSED, transposed_integers
from subtune.passes.rewriter import Rules, Walk, merged, rewrite

_SAME_SCALE = 1e-5
"""Relative: exporters round the scale of a bias, the product of two, in their own ways."""


def multiply_integers(walk: Walk, call: Call) -> Expr | None:
    """The rule on convolutions and products, of floats and of wide integers."""
    made = product_of_integers(walk, call)
    return None if isinstance(made, NotApplicable) else made


def add_bias(walk: Walk, call: Call) -> Expr | None:
    """The rule on sums of a product and of integers that have the product's scale, and of constants in sums."""
    if dtype_of(call) == "int32" and (known := array_of(call.args[1])) is not None:
        before = walk.defined_by(call.args[0], "relax.add")
        is_sum = before is not None and array_of(before.args[1]) is not None
        return _added(walk, call.args[0], known) if is_sum else None
    for left, right in (call.args, reversed(call.args)):
        product, bias = _product(walk, left), quantised(walk, right)
        numbers = None if bias is None else array_of(bias.values)
        if product is None or bias is None or numbers is None or np.any(bias.zero):
            continue
        (acc, factor), shape = product, numbers.shape
        scale = (
            bias.scale
            if bias.is_whole
            else bias.scale.reshape([-1 if a == bias.axis else 1 for a in range(len(shape))])
        )
        if _is_broadcast(shape, acc) and _are_close(scale, factor):
            return _scaled(_added(walk, acc, numbers.astype(np.int32)), factor)
    return None


def requantise(walk: Walk, call: Call) -> Expr | None:
    """The rule on quantisations: a product's factor is divided by the scale; of what has it already nothing is left."""
    scale, zero = array_of(call.args[1]), array_of(call.args[2])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    known = quantised(walk, call.args[0])
    if known is not None and known.is_whole and dtype_of(known.values) == dtype_of(call):
        one = (float(known.scale.reshape(())), int(known.zero.reshape(())))
        if one == (float(scale.reshape(())), int(zero.reshape(()))):
            return known.values
    step = np.float32(scale.reshape(()))
    if step == 1:
        return None
    value, rectified = call.args[0], walk.defined_by(call.args[0], "relax.nn.relu")
    product = _product(walk, value if rectified is None else rectified.args[0])
    if product is None:
        return None
    made = _scaled(product[0], product[1] / step)
    made = made if rectified is None else relax.op.nn.relu(made)
    one = make_const(np.ones_like(scale))
    return relax.op.quantize(made, one, call.args[2], axis=int(call.attrs.axis), out_dtype=dtype_of(call))


def move_integers(walk: Walk, call: Call) -> Expr | None:
    """The rule on what only moves elements, or takes the largest of a window: it may as well move the integers."""
    data = quantised(walk, call.args[0])
    if data is None or (dtype_of(data.values) == FLOAT8 and op_name(call) not in COPIES):
        return None
    axis = 0
    if not data.is_whole:
        found = _moved_axis(call, data)
        if found is None:
            return None
        axis = found
    return data.again(_moved(call, data.values), axis)


def move_bytes(walk: Walk, call: Call) -> Expr | None:
    """The rule on what moves bytes that were widened, minus one zero point: they are widened where they are read."""
    if dtype_of(call) != "int32":
        return None
    shifted = walk.defined_by(call.args[0], "relax.subtract")
    cast = walk.defined_by(call.args[0] if shifted is None else shifted.args[0], "relax.astype")
    if cast is None or dtype_of(cast.args[0]) not in BYTES or (shifted is not None and shape_of(shifted.args[1])):
        return None
    wide = relax.op.astype(_moved(call, cast.args[0]), "int32")
    return wide if shifted is None else relax.op.subtract(wide, shifted.args[1])


def integer_products(mod: tvm.IRModule) -> tvm.IRModule:
    """`mod` with products of quantised operands as products of integers."""
    return rewrite(mod, merged(INTEGERS, FOLD_BUT_INTEGERS)) if has_integers(mod) else mod


def has_integers(mod: tvm.IRModule) -> bool:
    """Whether anything is dequantised, or a product has integers already."""
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return any(
        op_name(value) == "relax.dequantize"
        or (op_name(value) in (*CONVOLUTIONS, "relax.matmul") and dtype_of(value) == "int32")
        for value in values
    )


def _product(walk: Walk, expr: Expr) -> tuple[Expr, np.ndarray] | None:
    """acc and factor where `expr` is astype(acc, float32) * factor, acc of int32 and the factor constant."""
    product = walk.defined_by(expr, "relax.multiply")
    factor = None if product is None else array_of(product.args[1])
    cast = None if product is None else walk.defined_by(product.args[0], "relax.astype")
    if factor is None or cast is None or dtype_of(cast.args[0]) != "int32" or factor.dtype != np.float32:
        return None
    return cast.args[0], factor


def _scaled(acc: Expr, factor: np.ndarray) -> Expr:
    return relax.op.multiply(relax.op.astype(acc, "float32"), make_const(factor))


def _added(walk: Walk, acc: Expr, numbers: np.ndarray) -> Expr:
    """acc + numbers; two constants become one."""
    before = walk.defined_by(acc, "relax.add")
    known = None if before is None else array_of(before.args[1])
    if before is None or known is None:
        return relax.op.add(acc, make_const(numbers))
    return relax.op.add(before.args[0], make_const(known + numbers))


def _is_broadcast(shape: tuple[int, ...], acc: Expr) -> bool:
    whole = shape_of(acc) or ()
    return np.broadcast_shapes(shape, whole) == whole


def _are_close(scale: np.ndarray, factor: np.ndarray) -> bool:
    return bool(np.all(np.abs(scale - factor) <= _SAME_SCALE * np.abs(factor)))


def _moved(call: Call, values: Expr) -> Expr:
    """The call on the integers; of constants its result."""
    numbers, shape = array_of(values), shape_of(call)
    if numbers is not None and op_name(call) == "relax.permute_dims":
        return make_const(transposed(numbers, _order(call, numbers.ndim)))
    if numbers is not None and shape is not None and op_name(call) in VIEWS:
        return make_const(numbers.reshape(shape))
    return tvm.ir.Call(call.op, [values, *list(call.args)[1:]], call.attrs, call.ty_args)


def _order(call: Call, rank: int) -> tuple[int, ...]:
    return ints(call.attrs.axes) if call.attrs.axes is not None else tuple(reversed(range(rank)))


def _moved_axis(call: Call, data: Quantised) -> int | None:
    """Where the axis of the scales lies afterwards: of a permutation, and of a vector that becomes a row."""
    before, after = shape_of(data.values), shape_of(call)
    if before is None or after is None:
        return None
    if op_name(call) == "relax.permute_dims":
        return _order(call, len(before)).index(data.axis)
    long = [axis for axis, extent in enumerate(after) if extent > 1]
    if op_name(call) == "relax.reshape" and prod(before) == before[data.axis] and len(long) == 1:
        return long[0]
    return None


INTEGERS: Rules = {
    **dict.fromkeys((*CONVOLUTIONS, "relax.matmul"), (multiply_integers,)),
    **dict.fromkeys(TRANSPOSED, (transposed_integers,)),
    "relax.add": (add_bias,),
    "relax.quantize": (requantise,),
    **dict.fromkeys(MOVED, (move_integers,)),
    **dict.fromkeys(COPIES, (move_integers, move_bytes)),
}
