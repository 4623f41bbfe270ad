"""What a quantised model computes in floats, each with the reason: read from its module after `integer_products`.

Products and convolutions say themselves why they are none of integers (`integer_sums`). An elementwise operator
computes bytes of bytes where all tensors as large as its result were dequantised, however long ago, and all that reads
its result quantises it, or is elementwise and judged itself. Named is where floats that were never quantised come in,
or where floats leave; what follows from an operator that is named is not. What a product of integers is scaled and
shifted by belongs to the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import tvm
from tvm import relax

from subtune.core.graph import InFloats
from subtune.core.kernel import NotApplicable
from subtune.core.names import name_of, names_of
from subtune.passes.byte_means import AVERAGE_POOLS
from subtune.passes.elementwise import BINARY, TERNARY, UNARY
from subtune.passes.exprs import CONVOLUTIONS, Expr, array_of, dtype_of, is_float, op_name, shape_of
from subtune.passes.integer_products import has_integers
from subtune.passes.integer_sums import is_window_sum, product_of_integers
from subtune.passes.integer_transposed import TRANSPOSED, convolutions_of_integers
from subtune.passes.opkind import MOVEMENTS
from subtune.passes.rewriter import Walk

_PRODUCTS = frozenset({*CONVOLUTIONS, "relax.matmul"})
_OTHER_PRODUCTS = frozenset({"relax.einsum", "relax.outer"})
_ELEMENTWISE = (UNARY | BINARY | TERNARY) - {"relax.astype", "relax.quantize", "relax.dequantize"}
_COUNTED = ("first", "second", "third")
_BYTES, _FLOATS, _NAMED = "bytes", "floats", "named"
"""What a tensor of floats is made of: of what was dequantised, of what never was quantised, of what an operator that is
named makes."""


def in_floats(mod: tvm.IRModule) -> tuple[InFloats, ...]:
    """The operators, in order; none of a model that quantises nothing."""
    return tuple(_Reading(mod).found()) if has_integers(mod) else ()


def _bindings(mod: tvm.IRModule) -> Iterator[tuple[Any, Expr]]:
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            yield binding.var, binding.value


def _operands(value: Expr) -> list[Any]:
    """The variables that an expression reads."""
    if isinstance(value, tvm.ir.Var):
        return [value]
    if isinstance(value, tvm.ir.TupleGetItem):
        return [value.tuple_value]
    parts = getattr(value, "args", None) or getattr(value, "fields", None) or ()
    return [var for part in parts for var in ([part] if isinstance(part, tvm.ir.Var) else _operands(part))]


class _Reading:
    """One walk over `main`. `_of_product` are the variables that a product of integers is finished with."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._walk = Walk({}, relax.BlockBuilder())
        self._made_of: dict[Any, set[str]] = {}
        self._of_product: set[Any] = set()
        self._readers: dict[Any, list[tuple[Any, Expr]]] = {}
        for var, value in _bindings(mod):
            for operand in _operands(value):
                self._readers.setdefault(operand, []).append((var, value))
        self._returned = set(_operands(mod["main"].body.body))

    def found(self) -> Iterator[InFloats]:
        names = names_of(self._mod)
        for param in self._mod["main"].params:
            self._made_of[param] = {_FLOATS} if is_float(dtype_of(param)) else set()
        for var, value in _bindings(self._mod):
            reason = self._reason(var, value) if isinstance(value, tvm.ir.Call) else ""
            self._made_of[var] = {_NAMED} if reason else self._origin(var, value)
            self._walk.defs[var] = value
            if reason:
                yield InFloats(name_of(names, var.name), op_name(value).removeprefix("relax."), reason)

    def _reason(self, var: Any, call: Expr) -> str:
        """Why an operator that might compute in integers does not; "" for all others."""
        name = op_name(call)
        if name in _PRODUCTS and any(is_float(dtype_of(arg)) or dtype_of(arg) == "int32" for arg in call.args[:2]):
            if is_window_sum(call):
                return ""
            made = product_of_integers(self._walk, call)
            return made.reason if isinstance(made, NotApplicable) else ""
        if not is_float(dtype_of(call)):
            return ""
        if name in TRANSPOSED:
            found = convolutions_of_integers(self._walk, call)
            return found.reason if isinstance(found, NotApplicable) else ""
        if name in _OTHER_PRODUCTS:
            return f"{name.rsplit('.', 1)[-1]} has no form in integers"
        if name not in _ELEMENTWISE or prod(shape_of(call) or ()) == 1:  # a single number: a scale that is computed
            return ""
        made_of = [self._made_of.get(arg, set()) if self._is_whole(arg, call) else set() for arg in call.args]
        if {_FLOATS} in made_of and any(_BYTES in one for one in made_of):
            return f"its {_COUNTED[made_of.index({_FLOATS})]} operand is not quantised"
        return self._left_as_floats(var) if self._origin(var, call) == {_BYTES} and var not in self._of_product else ""

    def _left_as_floats(self, var: Any) -> str:
        """Who reads the result of an elementwise operator as floats, past what only moves it."""
        if var in self._returned:
            return "its result is returned in floats"
        readers = self._readers.get(var, ())
        if any(op_name(value) == "relax.quantize" and array_of(value.args[1]) is None for _, value in readers):
            return "the scale of its result is not constant"
        for reader, value in readers:
            name = op_name(value)
            is_rounded = name == "relax.astype" and not is_float(dtype_of(value))
            if is_rounded or name == "relax.quantize" or name in _ELEMENTWISE:
                why = ""
            elif not name or name.removeprefix("relax.") in MOVEMENTS or name in AVERAGE_POOLS:
                why = self._left_as_floats(reader)
            else:
                why = f"its result is not quantised: {name.rsplit('.', 1)[-1]} reads it"
            if why:
                return why
        return ""

    def _origin(self, var: Any, value: Expr) -> set[str]:
        """What a binding is made of; notes whether a product of integers is finished with it."""
        name, operands = op_name(value), _operands(value)
        if name == "relax.dequantize":
            return {_BYTES}
        if name == "relax.astype" and not is_float(dtype_of(value.args[0])):
            self._of_product |= {var} if dtype_of(value.args[0]) == "int32" else set()
            return {_BYTES}
        whole = [one for one in operands if self._is_whole(one, value)] if name in _ELEMENTWISE else operands
        if len(whole) == 1 and whole[0] in self._of_product:
            self._of_product.add(var)
        found = set().union(*(self._made_of.get(one, set()) for one in whole))
        return {_NAMED} if {_BYTES, _FLOATS} <= found else found

    @staticmethod
    def _is_whole(operand: Expr, value: Expr) -> bool:
        """Whether an operand is a tensor of floats as large as the result: what is smaller are parameters."""
        return isinstance(operand, tvm.ir.Var) and is_float(dtype_of(operand)) and shape_of(operand) == shape_of(value)
