"""Turn the large constants of `main` into parameters, so that the weights can live beside the code."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


@relax.expr_functor.mutator
class _ConstantsToVars(relax.PyExprMutator):
    """Replaces every constant that is no scalar, or that a kernel takes, by a variable, one per distinct constant."""

    def __init__(self) -> None:
        super().__init__()
        self._is_in_kernel_call = False
        self.weights: list[Any] = []
        self.vars: list[relax.Var] = []
        self._known: dict[int, relax.Var] = {}

    def visit_call_(self, op: Any) -> Any:
        before, self._is_in_kernel_call = self._is_in_kernel_call, op.op == _CALL_TIR
        made = super().visit_call_(op)
        self._is_in_kernel_call = before
        return made

    def visit_generic_const_(self, op: GenericConst) -> Any:
        if not isinstance(op.value, tvm.runtime.Tensor) or not (op.value.shape or self._is_in_kernel_call):
            return op
        # One tensor may sit in several constant nodes: the object, not the node, is the identity that counts.
        known = self._known.get(hash(op.value))
        if known is None:
            known = relax.Var(f"weight{len(self.weights)}", op.ty)
            self._known[hash(op.value)] = known
            self.vars.append(known)
            self.weights.append(op.value)
        return known


def lift_constants(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[Any]]:
    """The module whose `main` takes every non-scalar constant as a further parameter, and those tensors in order.

    Scalars of operators stay: they cost nothing inside the code. A kernel reads what it takes from memory, as any other
    tensor. Functions other than `main` are left alone.
    """
    main = mod["main"]
    mutator = _ConstantsToVars()
    body = mutator.visit_expr(main.body)
    lifted = relax.Function([*main.params, *mutator.vars], body, main.ret_ty, main.is_pure, main.attrs)
    out = mod.clone()
    out.update_func(mod.get_global_var("main"), lifted)
    return out, mutator.weights
