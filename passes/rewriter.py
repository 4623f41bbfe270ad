"""One forward walk over a Relax function that applies peephole rules at every binding.

A rule looks at a call, and backwards through the definitions of its arguments, and returns the expression to put in
its place, or None. What a rule returns may be nested; it is flattened, typed, and offered to the rules again, so that
rules compose (a rule that emits `permute_dims` of a constant gets a constant back when folding is among the rules).
Unchanged bindings are kept as they are: a pass over a thousand bindings costs some tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from subtune.passes.exprs import Expr, dtype_of, is_const, is_value, op_name, shape_of
from subtune.passes.halves import half_of
from subtune.passes.uses import count_uses, drop_dead

Rule = Callable[["Walk", Expr], Expr | None]
"""`(walk, call) -> replacement | None`. The replacement has the type of the call."""
Rules = Mapping[str, Sequence[Rule]]
"""Operator name -> rules, tried in order. "*" is tried on every call, "tuple_get_item" on projections."""

_MAX_STEPS = 200
"""Rewrites of one binding before the rules are taken to chase each other: far above any real chain."""


@dataclass(slots=True)
class Walk:
    """What a rule may ask while a function is rewritten."""

    rules: Rules
    builder: Any
    bindings: list[Any] = field(default_factory=list)
    defs: dict[Any, Expr] = field(default_factory=dict)
    """Variable of the current block -> the expression bound to it."""
    uses: dict[Any, int] = field(default_factory=dict)
    """Variable -> uses before the pass. Never too small for a variable of the input; new ones are absent."""
    alias: dict[Any, Expr] = field(default_factory=dict)
    shared: dict[Any, list[Any]] = field(default_factory=dict)
    """Operator and operands -> the variables bound to such a call in this block."""
    in_dataflow: bool = True
    changes: int = 0
    half: str = ""
    """The half that the module was in: its constants are rounded to that."""

    def definition(self, expr: Expr) -> Expr:
        """The expression that `expr` is bound to, or `expr` itself for parameters and constants."""
        return self.defs.get(expr, expr) if isinstance(expr, tvm.ir.Var) else expr

    def defined_by(self, expr: Expr, name: str) -> Expr | None:
        """The call of operator `name` that computes `expr`, or None."""
        found = self.definition(expr)
        return found if op_name(found) == name else None

    def has_one_use(self, expr: Expr) -> bool:
        return self.uses.get(expr, 1) <= 1

    def emit(self, expr: Expr) -> Expr:
        """Bind `expr`, after the rules had their say; a variable or a constant comes back."""
        expr = self._simplify(self._flatten(expr))
        if not isinstance(expr, tvm.ir.Call | tvm.ir.TupleGetItem):
            return expr
        known = self._computed(expr)
        if known is not None:
            self.uses[known] = self.uses.get(known, 1) + 1
            return known
        make = relax.DataflowVar if self.in_dataflow else relax.Var
        var = make(f"n{len(self.bindings)}", expr.ty)
        self._bind(var, expr)
        return var

    def _bind(self, var: Any, value: Expr) -> None:
        self.bindings.append(relax.VarBinding(var, value))
        self._define(var, value)

    def _define(self, var: Any, value: Expr) -> None:
        self.defs[var] = value
        key = _sharing_key(value) if self.in_dataflow else None
        if key is not None:
            self.shared.setdefault(key, []).append(var)

    def _computed(self, value: Expr) -> Any | None:
        """The variable of this block that holds the same call already, or None."""
        key = _sharing_key(value) if self.in_dataflow else None
        for var in self.shared.get(key, ()) if key is not None else ():
            other = self.defs[var]
            if isinstance(value, tvm.ir.TupleGetItem) or _same_attrs(other.attrs, value.attrs):
                return var
        return None

    def _flatten(self, expr: Expr) -> Expr:
        """`expr` with nested calls bound to variables, and typed."""
        if isinstance(expr, tvm.ir.Call):
            args = [self._flatten_arg(arg) for arg in expr.args[:]]
            if not _all_same(args, expr.args):
                expr = tvm.ir.Call(expr.op, args, expr.attrs, expr.ty_args)
            return expr if not expr.ty.is_missing() else self.builder.normalize(expr)
        if isinstance(expr, tvm.ir.TupleGetItem):
            value = self._flatten_arg(expr.tuple_value)
            return self.builder.normalize(tvm.ir.TupleGetItem(value, expr.index))
        return expr

    def _flatten_arg(self, arg: Expr) -> Expr:
        if isinstance(arg, tvm.ir.Call | tvm.ir.TupleGetItem):
            return self.emit(arg) if is_value(arg) else arg
        if isinstance(arg, tvm.ir.Tuple):
            fields = [self._flatten_arg(f) for f in arg.fields[:]]
            if not _all_same(fields, arg.fields):
                return self.builder.normalize(tvm.ir.Tuple(fields))
        return arg

    def _simplify(self, expr: Expr) -> Expr:
        for _ in range(_MAX_STEPS):
            new = self._apply(expr)
            if new is None:
                return expr
            self.changes += 1
            expr = self._flatten(new)
            if not isinstance(expr, tvm.ir.Call | tvm.ir.TupleGetItem):
                return expr
        raise AssertionError(f"rewrite rules chase each other at {op_name(expr)}")

    def _apply(self, expr: Expr) -> Expr | None:
        key = "tuple_get_item" if isinstance(expr, tvm.ir.TupleGetItem) else op_name(expr)
        for rule in (*self.rules.get(key, ()), *self.rules.get("*", ())):
            new = rule(self, expr)
            if new is not None:
                return new
        return None

    # The walk itself.

    def visit(self, binding: Any) -> None:
        """Add the rewritten form of one binding of the input."""
        if isinstance(binding, relax.MatchCast):
            self.bindings.append(relax.MatchCast(binding.var, self._substituted(binding.value), binding.ty))
            return
        value = binding.value
        if not isinstance(value, tvm.ir.Call | tvm.ir.TupleGetItem | tvm.ir.Tuple | tvm.ir.Var) and not is_const(value):
            self._keep_names(value)
            self._bind(binding.var, value)
            return
        new = self._substituted(value)
        if isinstance(new, tvm.ir.Call | tvm.ir.TupleGetItem):
            new = self._simplify(new)
        if isinstance(new, tvm.ir.Call | tvm.ir.TupleGetItem):
            known = self._computed(new)
            if known is not None:
                self.changes += 1
                new = known
        self._finish(binding, new)

    def _finish(self, binding: Any, value: Expr) -> None:
        var = binding.var
        if isinstance(value, tvm.ir.Var) or is_const(value):
            _check_same_type(var, value)
            if isinstance(var, relax.DataflowVar):
                self.alias[var] = value
                if not is_const(value):
                    self.uses[value] = self.uses.get(value, 1) + self.uses.get(var, 0)
                return
        elif isinstance(value, tvm.ir.Call | tvm.ir.TupleGetItem):
            _check_same_type(var, value)
        if value.same_as(binding.value):
            self.bindings.append(binding)
            self._define(var, value)
        else:
            self._bind(var, value)

    def _keep_names(self, expr: Expr) -> None:
        """Bind replaced variables that a nested function or branch still mentions by name."""
        for var in relax.analysis.free_vars(expr):
            if var in self.alias:
                self.bindings.append(relax.VarBinding(var, self.alias.pop(var)))

    def _substituted(self, expr: Expr) -> Expr:
        """`expr` with replaced variables substituted in its direct arguments."""
        if isinstance(expr, tvm.ir.Var):
            return self.alias.get(expr, expr)
        if isinstance(expr, tvm.ir.Tuple):
            fields = [self._substituted(f) for f in expr.fields[:]]
            if _all_same(fields, expr.fields):
                return expr
            return self.builder.normalize(tvm.ir.Tuple(fields))
        if isinstance(expr, tvm.ir.TupleGetItem):
            value = self._substituted(expr.tuple_value)
            if value.same_as(expr.tuple_value):
                return expr
            return self.builder.normalize(tvm.ir.TupleGetItem(value, expr.index))
        if isinstance(expr, tvm.ir.Call) and is_value(expr):
            args = [self._substituted(arg) for arg in expr.args[:]]
            if _all_same(args, expr.args):
                return expr
            return tvm.ir.Call(expr.op, args, expr.attrs, expr.ty_args, ret_ty=expr.ty)
        return expr


def merged(*tables: Rules) -> Rules:
    """One table with the rules of all, those of earlier tables first."""
    result: dict[str, tuple[Rule, ...]] = {}
    for table in tables:
        for name, rules in table.items():
            result[name] = (*result.get(name, ()), *rules)
    return result


def rewrite(mod: tvm.IRModule, rules: Rules) -> tvm.IRModule:
    """The module with `rules` applied to every Relax function, forwards, once, and dead bindings removed."""
    out = mod
    for gvar, func in mod.functions.items():
        if not isinstance(func, relax.Function) or not isinstance(func.body, relax.SeqExpr):
            continue
        new = _rewrite_function(func, rules, half_of(mod))
        if new is not func:
            if out is mod:
                out = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
            out.update_func(gvar, new)
    return out


def with_blocks(mod: tvm.IRModule, blocks: Sequence[Any]) -> tvm.IRModule:
    """The module whose `main` has these blocks, and the result it has."""
    func = mod["main"]
    body = relax.BlockBuilder().normalize(relax.SeqExpr(list(blocks), func.body.body))
    out = tvm.IRModule(mod.functions, attrs=mod.attrs, global_infos=mod.global_infos)
    made = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)
    out.update_func(mod.get_global_var("main"), made)
    return out


def _rewrite_function(func: relax.Function, rules: Rules, half: str) -> relax.Function:
    if not any(block.bindings for block in func.body.blocks):
        return func
    walk = Walk(rules, relax.BlockBuilder(), uses=count_uses(func), half=half)
    blocks = []
    for block in func.body.blocks:
        walk.bindings = []
        walk.shared = {}
        walk.defs = {}  # a later block must not mention this one's dataflow variables
        walk.in_dataflow = isinstance(block, relax.DataflowBlock)
        for binding in block.bindings:
            walk.visit(binding)
        blocks.append((type(block), _adopt_outputs(walk.bindings) if walk.in_dataflow else walk.bindings))
    body = walk._substituted(func.body.body)
    kept, removed = drop_dead(blocks, body)
    if walk.changes == 0 and not walk.alias and not removed:
        return func
    new_blocks = [make(bindings) for make, bindings in kept if bindings]
    seq = walk.builder.normalize(relax.SeqExpr(new_blocks, body))
    return relax.Function(func.params, seq, func.ret_ty, func.is_pure, func.attrs)


def _adopt_outputs(bindings: list[Any]) -> list[Any]:
    """`lv = f(x); gv = lv` -> `gv = f(x)`: a block's output is bound to the call that computes it."""
    renamed: dict[Any, Any] = {}
    for binding in bindings:
        is_output = not isinstance(binding.var, relax.DataflowVar)
        if is_output and isinstance(binding.value, relax.DataflowVar):
            renamed.setdefault(binding.value, binding.var)
    if not renamed:
        return bindings
    for binding in bindings:
        if not isinstance(binding, relax.VarBinding) or isinstance(binding.value, relax.Function | relax.If):
            return bindings  # nested scopes may mention the old name
    walk = Walk({}, relax.BlockBuilder(), alias=renamed)
    adopted = []
    for binding in bindings:
        if renamed.get(binding.value) is not None and renamed[binding.value].same_as(binding.var):
            continue
        adopted.append(relax.VarBinding(renamed.get(binding.var, binding.var), walk._substituted(binding.value)))
    return adopted


def _all_same(new: Sequence[Expr], old: Sequence[Expr]) -> bool:
    """Whether the nodes are the same ones (Python's `is` compares their wrappers, of which a node has many)."""
    return all(a.same_as(b) for a, b in zip(new, old[:], strict=True))


_NOT_SHARED = ("relax.call_", "relax.vm.", "relax.memory.", "relax.builtin.", "relax.nn.dropout", "relax.multinomial")


def _sharing_key(expr: Expr) -> tuple[Any, ...] | None:
    """Equal for calls of one operator on the same operands (attributes not compared); None for what is not shared."""
    if isinstance(expr, tvm.ir.TupleGetItem):
        return ("[]", expr.tuple_value, int(expr.index)) if isinstance(expr.tuple_value, tvm.ir.Var) else None
    name = op_name(expr)
    if not name or name.startswith(_NOT_SHARED):
        return None
    parts: list[Any] = [name]
    for arg in expr.args[:]:
        if isinstance(arg, tvm.ir.Var) or is_const(arg):
            parts.append(arg)
        elif isinstance(arg, relax.ShapeExpr | tvm.ir.Tuple | tvm.tirx.IntImm | tvm.tirx.FloatImm):
            inner = arg.values if isinstance(arg, relax.ShapeExpr) else getattr(arg, "fields", (arg,))
            for part in inner:
                is_number = isinstance(part, tvm.tirx.IntImm | tvm.tirx.FloatImm)
                if not is_number and not isinstance(part, tvm.ir.Var) and not is_const(part):
                    return None
                parts.append((str(part.ty), part.value) if is_number else part)
            parts.append(len(parts))
        else:
            return None
    return tuple(parts)


def _same_attrs(a: Any, b: Any) -> bool:
    return (a is None and b is None) or (a is not None and b is not None and tvm_ffi.structural_equal(a, b))


def _check_same_type(var: Any, value: Expr) -> None:
    if var.ty.same_as(value.ty):
        return
    old, new = (shape_of(var), dtype_of(var)), (shape_of(value), dtype_of(value))
    assert old[0] is None or old == new, f"a rewrite changed the type of {var.name} from {old} to {new}"
