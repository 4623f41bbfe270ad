"""Casts of halves on the other side of views, where a kernel is that they can join.

    pool(reshape(astype(x16)))  ->  pool(astype(reshape(x16)))
    astype(reshape(pool(x)))    ->  reshape(astype(pool(x)))

A view costs nothing and ends a group: a cast between a view and the model's input would be a kernel of its own.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.numerics import HALVES
from subtune.passes.exprs import Expr, dtype_of, shape_of
from subtune.passes.rewriter import Walk, rewrite

_FULL = "float32"


def casts_past_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Casts to float32 after the views that follow them, casts to a half before the views that they follow."""
    return rewrite(mod, {"relax.reshape": (_widen_later,), "relax.astype": (_round_sooner,)})


def _widen_later(walk: Walk, view: Call) -> Expr | None:
    """`reshape(astype(x16, float32))` -> `astype(reshape(x16), float32)`."""
    cast, shape = walk.defined_by(view.args[0], "relax.astype"), shape_of(view)
    if cast is None or shape is None or dtype_of(cast) != _FULL or dtype_of(cast.args[0]) not in HALVES:
        return None
    return relax.op.astype(relax.op.reshape(cast.args[0], shape), _FULL)


def _round_sooner(walk: Walk, cast: Call) -> Expr | None:
    """`astype(reshape(x), half)` -> `reshape(astype(x, half))`, where nobody else reads either."""
    view, shape = walk.defined_by(cast.args[0], "relax.reshape"), shape_of(cast)
    if view is None or shape is None or dtype_of(cast) not in HALVES or dtype_of(view) != _FULL:
        return None
    if not walk.has_one_use(cast.args[0]) or not walk.has_one_use(view.args[0]):
        return None
    return relax.op.reshape(relax.op.astype(view.args[0], dtype_of(cast)), shape)
