"""Products of what was quantised to floats of 8 bits are products of these, where a device multiplies them.

    matmul(s q, t w)                  ->   matmul(q, w) f                 q, w of float8e4m3fn, sums of float32, f = s t
    quantize(relu(acc f + b), step)   ->   quantize(relu(acc (f / step) + b / step), 1)

A product of two such numbers is exact in float32. Where no unit multiplies them, and for all that is no product, a
device computes in float32 what a number is rounded to, and keeps no floats of 8 bits:

    quantize(x, s)     ->   rounded(x / s)                of float32
    dequantize(q, s)   ->   q s
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, te
from tvm.ir import Call

from subtune.core.forms import ANY, Forms
from subtune.core.numerics import FLOAT8
from subtune.passes.exprs import (
    CONVOLUTIONS,
    Expr,
    array_of,
    convolved,
    dtype_of,
    is_const,
    is_value,
    make_const,
    op_name,
    shape_of,
)
from subtune.passes.fold_constants import FOLD_BUT_INTEGERS
from subtune.passes.integer_operands import COPIES, quantised
from subtune.passes.integer_products import move_integers
from subtune.passes.integer_sums import along
from subtune.passes.legalize_quantised import parameter_at, rounded_to_float8
from subtune.passes.rewriter import Rules, Walk, merged, rewrite

_QUANTISES = ("relax.quantize", "relax.dequantize")


def float8_products(mod: tvm.IRModule, forms: Forms = ANY) -> tvm.IRModule:
    """`mod` with products of float8e4m3fn where `forms` has them, else without numbers of that type."""
    if not _has_float8(mod):
        return mod
    if forms.multiplies_float8:
        return rewrite(mod, merged(_PRODUCTS, FOLD_BUT_INTEGERS))
    return _InFloats(mod).write()


def multiply_float8(walk: Walk, call: Call) -> Expr | None:
    """The rule on products and convolutions of two operands of float8e4m3fn, dequantised by constants."""
    a, b = (quantised(walk, arg) for arg in call.args[:2])
    if a is None or b is None or dtype_of(call) != "float32":
        return None
    if {dtype_of(side.values) for side in (a, b)} != {FLOAT8} or not a.is_whole:
        return None
    is_conv, shape = op_name(call) in CONVOLUTIONS, shape_of(b.values) or ()
    columns = str(call.attrs.kernel_layout).index("O") if is_conv else len(shape) - 1
    if len(shape) < 2 or (not b.is_whole and b.axis != columns) or (is_conv and int(call.attrs.groups) > 1):
        return None
    if is_conv:
        acc, axis = convolved(call, a.values, b.values, out_dtype="float32"), str(call.attrs.out_layout).index("C")
    else:
        acc, axis = relax.op.matmul(a.values, b.values, "float32"), len(shape_of(call) or ()) - 1
    return relax.op.multiply(acc, along(a.scale.reshape(-1) * b.scale.reshape(-1), axis, call))


def requantise_float8(walk: Walk, call: Call) -> Expr | None:
    """The rule on quantisations of such a product, with or without a bias and a Relu: its scale joins the factor."""
    step = array_of(call.args[1])
    if dtype_of(call) != FLOAT8 or step is None or step.size != 1 or step == 1 or not (step > 0).all():
        return None
    value, rectified = call.args[0], walk.defined_by(call.args[0], "relax.nn.relu")
    value = value if rectified is None else rectified.args[0]
    biased = walk.defined_by(value, "relax.add")
    bias = None if biased is None else array_of(biased.args[1])
    scaled = walk.defined_by(value if bias is None else biased.args[0], "relax.multiply")  # type: ignore[union-attr]
    factor = None if scaled is None else array_of(scaled.args[1])
    if scaled is None or factor is None or not _is_product(walk.definition(scaled.args[0])):
        return None
    one = np.float32(step.reshape(()))
    made = relax.op.multiply(scaled.args[0], make_const(factor / one))
    made = made if bias is None else relax.op.add(made, make_const(bias / one))
    made = made if rectified is None else relax.op.nn.relu(made)
    return relax.op.quantize(made, make_const(np.ones_like(step)), call.args[2], axis=0, out_dtype=FLOAT8)


def _is_product(value: Expr) -> bool:
    return op_name(value) in (*CONVOLUTIONS, "relax.matmul") and dtype_of(value.args[0]) == FLOAT8


_PRODUCTS: Rules = {
    **dict.fromkeys((*CONVOLUTIONS, "relax.matmul"), (multiply_float8,)),
    "relax.quantize": (requantise_float8,),
    **dict.fromkeys(COPIES, (move_integers,)),
}


def _has_float8(mod: tvm.IRModule) -> bool:
    values = (binding.value for block in mod["main"].body.blocks for binding in block.bindings)
    return any(op_name(value) in _QUANTISES and FLOAT8 in map(dtype_of, (value, value.args[0])) for value in values)


class _InFloats:
    """Writes the new main, in which float32 holds the numbers of float8e4m3fn."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        loops = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
        self._bb = relax.BlockBuilder(tvm.IRModule(loops))
        self._made: dict[Any, Expr] = {}

    def write(self) -> tvm.IRModule:
        main = self._mod["main"]
        attrs = {key: main.attrs[key] for key in main.attrs.keys()} if main.attrs else {}  # noqa: SIM118
        with self._bb.function("main", list(main.params), attrs=attrs):
            with self._bb.dataflow():
                for block in main.body.blocks:
                    for binding in block.bindings:
                        self._made[binding.var] = self._written(binding.var, binding.value)
                output = self._bb.emit_output(self._operand(main.body.body))
            self._bb.emit_func_output(output)
        made = self._bb.get()
        for key in self._mod.attrs.keys() if self._mod.attrs else ():
            made = made.with_attr(key, self._mod.attrs[key])
        return relax.transform.DeadCodeElimination(["main"])(made)

    def _written(self, var: Any, value: Expr) -> Expr:
        if not isinstance(value, Call):
            found = self._operand(value)
            return found if isinstance(found, tvm.ir.Var) or is_const(found) else self._bb.emit(found)
        args = [self._operand(arg) if is_value(arg) else arg for arg in value.args]
        if op_name(value) == "relax.quantize" and dtype_of(value) == FLOAT8:
            return self._rounded(args, int(value.attrs.axis))
        if op_name(value) == "relax.dequantize" and dtype_of(value.args[0]) == FLOAT8:
            scale = array_of(args[1])
            if scale is None or scale.size == 1:
                return self._bb.emit(relax.op.multiply(args[0], args[1]), var.name)
            dims = [-1 if axis == int(value.attrs.axis) else 1 for axis in range(len(shape_of(value) or ()))]
            return self._bb.emit(relax.op.multiply(args[0], make_const(scale.reshape(dims))), var.name)
        is_same = all(new.same_as(old) for new, old in zip(args, value.args, strict=True))
        made = value if is_same else tvm.ir.Call(value.op, args, value.attrs, value.ty_args)
        return self._bb.emit(made, var.name)

    def _rounded(self, args: list[Any], axis: int) -> Expr:
        def te_round(x: Any, scale: Any) -> Any:
            def at(*index: Any) -> Any:
                return rounded_to_float8(x(*index), parameter_at(scale, index, axis))

            return te.compute(x.shape, at, name="round_to_float8")

        return self._bb.emit_te(te_round, args[0], args[1], primfunc_name_hint="round_to_float8")

    def _operand(self, arg: Expr) -> Expr:
        if isinstance(arg, tvm.ir.Var):
            return self._made.get(arg, arg)
        if is_const(arg) and dtype_of(arg) == FLOAT8:
            numbers = array_of(arg)
            assert numbers is not None, "a constant has no value"
            return make_const(numbers.astype(np.float32))
        if isinstance(arg, tvm.ir.Tuple):
            return tvm.ir.Tuple([self._operand(part) for part in arg.fields])
        if isinstance(arg, tvm.ir.TupleGetItem):
            return tvm.ir.TupleGetItem(self._operand(arg.tuple_value), arg.index)
        return arg
