"""Views move down through operators that compute every element by itself: what a product makes meets its epilogue.

relu(view(y))           ->  view(relu(y))
view(y) + bias          ->  view(y + bias)
view(y) + r             ->  view(y + view(r))
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax
from tvm.ir import Call

from subtune.passes.elementwise import on_other, only_tensor, rebuilt
from subtune.passes.exprs import Expr, shape_of
from subtune.passes.rewriter import Walk

Inner = Callable[[Walk, Expr], Expr | None]
"""The tensor of which an expression is a view that may move, or None."""
Broadcast = Callable[[Expr, tuple[int, ...], tuple[int, ...]], Expr | None]
"""An operand of fewer elements, beside a view of the first shape, as it is beside what that is a view of, of the
second; or None."""


def past_unary(inner: Inner) -> Callable[[Walk, Call], Expr | None]:
    """The rule on operators with one tensor."""

    def rule(walk: Walk, call: Call) -> Expr | None:
        tensor = only_tensor(call)
        viewed = None if tensor is None else inner(walk, tensor)
        return None if viewed is None else relax.op.reshape(on_other(call, viewed), shape_of(call))

    return rule


def past_binary(inner: Inner, broadcast: Broadcast) -> Callable[[Walk, Call], Expr | None]:
    """The rule on operators with two tensors, one of which at least is a view as large as the result."""

    def rule(walk: Walk, call: Call) -> Expr | None:
        shape = shape_of(call)
        if shape is None:
            return None
        viewed = [inner(walk, arg) if shape_of(arg) == shape else None for arg in call.args]
        flat = next((shape_of(one) for one in viewed if one is not None), None)
        if flat is None:
            return None

        def operand(arg: Expr, one: Expr | None) -> Expr | None:
            if one is not None:
                return one
            return relax.op.reshape(arg, flat) if shape_of(arg) == shape else broadcast(arg, shape, flat)

        args = [operand(arg, one) for arg, one in zip(call.args, viewed, strict=True)]
        return None if any(arg is None for arg in args) else relax.op.reshape(rebuilt(call, args), shape)

    return rule
