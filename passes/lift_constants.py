"""Turn the large constants of `main` into parameters, so that the weights can live beside the code."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst


@relax.expr_functor.mutator
class _ConstantsToVars(relax.PyExprMutator):
    """Replaces every constant that is not a scalar by a variable, one per distinct constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Any] = []
        self.vars: list[relax.Var] = []
        self._known: dict[int, relax.Var] = {}

    def visit_generic_const_(self, op: GenericConst) -> Any:
        if not isinstance(op.value, tvm.runtime.Tensor) or not op.value.shape:
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

    Scalars stay: they cost nothing inside the code. Functions other than `main` are left alone.
    """
    main = mod["main"]
    mutator = _ConstantsToVars()
    body = mutator.visit_expr(main.body)
    lifted = relax.Function([*main.params, *mutator.vars], body, main.ret_ty, main.is_pure, main.attrs)
    out = mod.clone()
    out.update_func(mod.get_global_var("main"), lifted)
    return out, mutator.weights
