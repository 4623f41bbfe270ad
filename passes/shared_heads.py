"""Heads that share keys and values, with one row each, as the rows of one product: decoding with grouped queries.

    matmul(q[b, g * r, 1, k], repeat(x[b, g, k, n], r))  ->  reshape(matmul(reshape(q, [b, g, r, k]), x))

Nothing is repeated, and what is read of memory once serves r rows. The view moves down through what follows element by
element and through softmax, until the next such product takes it back.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.elementwise import BINARY, WITH_LOOKUPS
from subtune.passes.exprs import Expr, ints, positive_axis, shape_of
from subtune.passes.normalize_cleanup import CLEANUP
from subtune.passes.rewriter import Rules, Walk, merged, rewrite
from subtune.passes.sink_views import past_binary, past_unary


def fold_shared_heads(mod: tvm.IRModule, folds: bool = False) -> tvm.IRModule:
    """Products of one row with what several heads share, where the device `folds` them (`Forms.folds_heads`)."""
    return rewrite(mod, _RULES) if folds else mod


def _as_rows(walk: Walk, call: Call) -> Expr | None:
    """The rule on matmul."""
    rows, result = shape_of(call.args[0]), shape_of(call)
    turned = walk.defined_by(call.args[1], "relax.permute_dims")
    repeated = walk.defined_by(turned.args[0] if turned is not None else call.args[1], "relax.repeat")
    if repeated is None or rows is None or result is None or len(rows) < 3 or rows[-2] != 1:
        return None
    shared, whole = shape_of(repeated.args[0]), shape_of(repeated)
    if shared is None or whole is None or rows[:-2] != whole[:-2] or repeated.attrs.axis is None:
        return None
    rank = len(rows)
    if positive_axis(int(repeated.attrs.axis), rank) != rank - 3:
        return None
    if turned is not None and ints(turned.attrs.axes) != (*range(rank - 2), rank - 1, rank - 2):
        return None
    other = repeated.args[0] if turned is None else relax.op.permute_dims(repeated.args[0], turned.attrs.axes)
    times = whole[-3] // shared[-3]
    folded = relax.op.reshape(call.args[0], (*shared[:-2], times, rows[-1]))
    return relax.op.reshape(relax.op.matmul(folded, other, call.attrs.out_dtype), result)


def _folded(walk: Walk, expr: Expr) -> Expr | None:
    """The [..., g, r, n] tensor of a product of which `expr` is the view [..., g * r, 1, n], or None."""
    view = walk.defined_by(expr, "relax.reshape")
    if view is None:
        return None
    inner, outer = shape_of(view.args[0]), shape_of(expr)
    if inner is None or outer is None or len(inner) != len(outer) or len(outer) < 3 or inner == outer:
        return None
    is_fold = outer[-2] == 1 and inner[:-3] == outer[:-3] and inner[-1] == outer[-1]
    return view.args[0] if is_fold and inner[-3] * inner[-2] == outer[-3] else None


def _of_heads(arg: Expr, view: tuple[int, ...], flat: tuple[int, ...]) -> Expr | None:
    """What is the same for all heads, or one of each, as it goes with `flat`."""
    given = shape_of(arg)
    if given is None:
        return None
    if not given:  # a number
        return arg
    padded = (1,) * (len(view) - len(given)) + given
    heads = flat[-3:-1] if padded[-3] == view[-3] else (1, 1)
    return relax.op.reshape(arg, (*padded[:-3], *heads, padded[-1]))


def _softmax(walk: Walk, call: Call) -> Expr | None:
    """The rule on softmax over the last axis."""
    inner, shape = _folded(walk, call.args[0]), shape_of(call)
    if inner is None or shape is None or positive_axis(int(call.attrs.axis), len(shape)) != len(shape) - 1:
        return None
    return relax.op.reshape(relax.op.nn.softmax(inner, axis=-1), shape)


_RULES: Rules = merged(
    {
        "relax.matmul": (_as_rows,),
        "relax.nn.softmax": (_softmax,),
        **dict.fromkeys(WITH_LOOKUPS, (past_unary(_folded),)),
        **dict.fromkeys(BINARY, (past_binary(_folded, _of_heads),)),
    },
    CLEANUP,
)
