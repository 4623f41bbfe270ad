"""A model in a half precision -> the same in float32, so that it takes the road of every float32 model.

    astype(matmul(x16, w16, out_dtype=float32), float16) -> gelu  ->  matmul(x, w) -> gelu      x = astype(x16, float32)

Norms and activations are recognised, weights folded and groups formed as in the float32 model; afterwards
`subtune.passes.half_precision` gives the products their half again, and what travels between kernels. What the file
rounds after each operator stays in float32 inside of a kernel: no result becomes less exact. Inputs and results of the
model keep their types, and so do loops that an importer wrote and operators that are bound to the type.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax

from subtune.core.numerics import HALVES
from subtune.passes.exprs import Expr, array_of, dtype_of, is_const, is_value, make_const, op_name
from subtune.passes.float_regions import (
    BEGIN,
    END,
    FULL,
    is_cast_of_half,
    leaves,
    marked,
    regions,
    variables,
)
from subtune.passes.fold_constants import FOLD_BUT_INTEGERS
from subtune.passes.halves import with_half
from subtune.passes.normalize_activations import recognise_activations
from subtune.passes.normalize_cleanup import clean_up
from subtune.passes.normalize_norms import recognise_norms
from subtune.passes.rewriter import rewrite

_BOUND = ("relax.call_", "relax.quantize", "relax.dequantize", "relax.vm.", "relax.memory.", "relax.builtin.")
"""Operators that take their operands as they are, by how their names begin."""


def widen(mod: tvm.IRModule) -> tvm.IRModule:
    """A module in a half -> the same in float32, with its half noted for `half_of`.

    One that only casts from halves or to them stays as it is, and so does one that mixes both, or has control flow.
    """
    half = _found_half(mod)
    if not half:
        return mod
    # in the file's types first: a norm in float32 between two casts is one operator then, and no region of its own
    mod = with_half(mod, half)
    mod = rewrite(mod, FOLD_BUT_INTEGERS)
    for recognise in (clean_up, recognise_activations, recognise_norms):
        mod = recognise(mod)
    return _Writer(mod, half).write()


def _found_half(mod: tvm.IRModule) -> str:
    main = mod["main"]
    if not isinstance(main, relax.Function) or not isinstance(main.body, relax.SeqExpr):
        return ""
    found: set[str] = set()
    rounded: set[Any] = set()
    for block in main.body.blocks:
        for binding in block.bindings:
            if isinstance(binding, relax.MatchCast) or isinstance(binding.value, relax.If | relax.Function):
                return ""
            if is_cast_of_half(binding.value):
                source = binding.value.args[0]
                if dtype_of(source) == FULL:
                    rounded.add(binding.var)
                elif source in rounded:  # between two operators that the importer made in float32
                    found.add(dtype_of(source))
            elif op_name(binding.value) not in ("", "relax.astype"):
                found |= HALVES & _types((binding.var, *_tensors(binding.value)))
    return found.pop() if len(found) == 1 else ""


def _tensors(value: Expr) -> Iterable[Expr]:
    """The variables and constants that a call reads."""
    return (*variables(value), *(arg for arg in getattr(value, "args", ()) if is_const(arg)))


def _types(exprs: Iterable[Expr]) -> set[str]:
    return {dtype for expr in exprs for dtype in leaves(expr.ty)}


def _in_float32(attrs: Any, has_halves: bool) -> Any:
    """The attributes of an operator on halves as the one on float32 has them: products say no type of their own."""
    if attrs is None or not has_halves:
        return attrs
    info = type(attrs).__tvm_ffi_type_info__
    fields = {one.name: getattr(attrs, one.name) for one in info.fields}
    if str(fields.get("dtype")) in HALVES:
        fields["dtype"] = FULL
    if str(fields.get("out_dtype")) in {FULL, *HALVES}:
        fields["out_dtype"] = None
    return tvm.ir.make_node(info.type_key, **fields)


def _is_bound(call: Any) -> bool:
    """Whether an operator has to take its operands in the types they have, or does so for nothing."""
    name = op_name(call)
    if name in ("relax.scatter_elements", "relax.scatter_nd"):
        return str(call.attrs.reduction) == "update"  # which copies; sums are more exact in float32
    return name.startswith(_BOUND)


class _Writer:
    """Writes the new main. `_wide` holds what takes the place of a variable of the old one."""

    def __init__(self, mod: tvm.IRModule, half: str) -> None:
        self._mod, self._half = mod, half
        self._regions = regions(mod["main"])
        loops = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
        self._bb = relax.BlockBuilder(tvm.IRModule(loops))
        self._wide: dict[Any, Expr] = {}
        self._constants: dict[Any, Expr] = {}

    def write(self) -> tvm.IRModule:
        main = self._mod["main"]
        attrs = {key: main.attrs[key] for key in main.attrs.keys()} if main.attrs else {}  # noqa: SIM118
        with self._bb.function("main", list(main.params), attrs=attrs):
            with self._bb.dataflow():
                for param in main.params:
                    self._wide[param] = self._full(param)
                for block in main.body.blocks:
                    for binding in block.bindings:
                        self._wide[binding.var] = self._written(binding.var, binding.value)
                result = self._typed(self._operand(main.body.body), main.body.body.ty)
                output = self._bb.emit_output(result)
            self._bb.emit_func_output(output)
        made = self._bb.get()
        for key in self._mod.attrs.keys() if self._mod.attrs else ():
            made = made.with_attr(key, self._mod.attrs[key])
        return relax.transform.DeadCodeElimination(["main"])(made)

    def _written(self, var: Any, value: Expr) -> Expr:
        if not isinstance(value, tvm.ir.Call):
            return self._emitted(self._operand(value))
        enters = var in self._regions and not any(operand in self._regions for operand in variables(value))
        if is_cast_of_half(value):
            return self._bordered(value.args[0], END if value.args[0] in self._regions else BEGIN if enters else None)
        if enters and self._half in _types(variables(value)):
            return self._bb.emit(marked(self._computed(var, value), BEGIN))
        return self._computed(var, value)

    def _computed(self, var: Any, value: Any) -> Expr:
        """The operator on float32, or as it is where it is bound to its types."""
        if not _is_bound(value):
            args = [self._read(var, arg) for arg in value.args]
            attrs = _in_float32(value.attrs, self._half in _types((var, *_tensors(value))))
            made = self._bb.emit(tvm.ir.Call(value.op, args, attrs, value.ty_args), var.name)
            if list(leaves(made.ty)) == [FULL if dtype == self._half else dtype for dtype in leaves(var.ty)]:
                return made
        args = [self._typed(self._operand(arg), arg.ty) if is_value(arg) else arg for arg in value.args]
        made = tvm.ir.Call(value.op, args, value.attrs, value.ty_args, ret_ty=value.ty)
        return self._full(self._bb.emit(made, var.name))

    def _read(self, var: Any, arg: Expr) -> Expr:
        """An operand of what makes `var`, across the border where one of both is in a float32 region."""
        if not isinstance(arg, tvm.ir.Var):
            return self._operand(arg)
        if arg in self._regions and self._half in leaves(var.ty):
            return self._bordered(arg, END)
        return self._operand(arg)

    def _bordered(self, arg: Expr, border: tuple[float, float] | None) -> Expr:
        wide = self._operand(arg)
        return wide if border is None or is_const(wide) else self._bb.emit(marked(wide, border))

    def _operand(self, arg: Expr) -> Expr:
        """What takes the place of an operand: halves in float32, everything else as it is."""
        if isinstance(arg, tvm.ir.Var):
            return self._wide.get(arg, arg)
        if is_const(arg):
            return self._constant(arg)
        if isinstance(arg, tvm.ir.Tuple):
            return tvm.ir.Tuple([self._operand(part) for part in arg.fields])
        if isinstance(arg, tvm.ir.TupleGetItem):
            return tvm.ir.TupleGetItem(self._operand(arg.tuple_value), arg.index)
        return arg

    def _constant(self, constant: Expr) -> Expr:
        if dtype_of(constant) != self._half:
            return constant
        if constant not in self._constants:
            array = array_of(constant)
            assert array is not None, "a constant has no value"
            self._constants[constant] = make_const(np.asarray(array).astype(FULL))
        return self._constants[constant]

    def _emitted(self, expr: Expr) -> Expr:
        return expr if isinstance(expr, tvm.ir.Var) or is_const(expr) else self._bb.emit(expr)

    def _full(self, expr: Expr) -> Expr:
        """A value of the old types -> one without halves."""
        if isinstance(expr.ty, tvm.ir.TupleType):
            if self._half not in leaves(expr.ty):
                return expr
            parts = [self._bb.emit(tvm.ir.TupleGetItem(expr, i)) for i in range(len(expr.ty.fields))]
            return self._bb.emit(tvm.ir.Tuple([self._full(part) for part in parts]))
        return self._bb.emit(relax.op.astype(expr, FULL)) if dtype_of(expr) == self._half else expr

    def _typed(self, expr: Expr, ty: Any) -> Expr:
        """A value without halves -> one of the old type `ty`."""
        if isinstance(ty, tvm.ir.TupleType):
            items = expr.fields if isinstance(expr, tvm.ir.Tuple) else None
            parts = items or [self._bb.emit(tvm.ir.TupleGetItem(expr, i)) for i in range(len(ty.fields))]
            return tvm.ir.Tuple([self._typed(part, one) for part, one in zip(parts, ty.fields, strict=True)])
        if self._half not in leaves(ty):
            return expr
        return self._bb.emit(relax.op.astype(expr, self._half))
