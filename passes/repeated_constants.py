"""What repeats along an axis is computed once and read where it is, not written out.

Exporters make masks as they make weights: a row of comparisons is expanded to every image, head and row, and a `where`
turns it into numbers that are added. Written out, such a mask is as large as the scores; whether it were, would depend
on how large, and a model of many shapes has to be the same model at all of them. So this pass comes before constants
are folded:

- `add(broadcast_to(a), broadcast_to(b))` -> `broadcast_to(add(a, b))`, folded, where `a` and `b` are known;
- `add(x, broadcast_to(a))` -> `add(x, a)`, where `x` has the shape of the sum;
- `where(c, x, y)` -> `x` or `y`, where `c` is true or false everywhere;
- `softmax(x + 0)` -> `softmax(x)`, which is what is left of a mask that hides nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, IRModule

from subtune.passes.exprs import Expr, array_of, dtype_of, is_const, make_const, op_name, scalar_of, shape_of
from subtune.passes.fold_constants import evaluated, fold, operand_of
from subtune.passes.fold_table import TABLE
from subtune.passes.opkind import CHEAP, COSTLY
from subtune.passes.rewriter import Rules, Walk, rewrite

_ELEMENTWISE = (CHEAP | COSTLY) - {"quantize", "dequantize", "nn.prelu"}
"""Not what has an axis of its own."""
_MADE = frozenset(("bool", "int32", "int64"))
"""Types of what masks are made of. Weights are of others, and folded later."""


def compute_once(walk: Walk, call: Call) -> Expr | None:
    """The rule: an elementwise op of known operands that all repeat along an axis -> it once, broadcast."""
    shape = shape_of(call)
    if shape is None or not _is_elementwise(call) or op_name(call) not in TABLE:
        return None
    operands = [_known(walk, arg) for arg in call.args]
    if any(operand is None for operand in operands):
        return None
    arrays = [np.broadcast_to(one, shape) if isinstance(one, np.ndarray) else one for one in operands]
    strides = [one.strides for one in arrays if isinstance(one, np.ndarray)]
    repeats = [size > 1 and not any(of) for size, of in zip(shape, zip(*strides, strict=True), strict=True)]
    if not any(repeats):
        return None
    part = tuple(slice(0, 1) if is_repeated else slice(None) for is_repeated in repeats)
    value = evaluated(TABLE[op_name(call)], call, [one[part] if isinstance(one, np.ndarray) else one for one in arrays])
    return None if value is None else relax.op.broadcast_to(make_const(value), shape)


def choose(walk: Walk, call: Call) -> Expr | None:
    """The rule: `where` of a condition that is the same everywhere -> what it chooses."""
    condition, shape = _known(walk, call.args[0]), shape_of(call)
    if condition is None or shape is None or not condition.size:
        return None
    if condition.all() or not condition.any():
        chosen = call.args[1 if condition.any() else 2]
        if dtype_of(chosen) == dtype_of(call):
            return chosen if shape_of(chosen) == shape else relax.op.broadcast_to(chosen, shape)
    return None


def read_once(walk: Walk, call: Call) -> Expr | None:
    """The rule: an elementwise op of `x` and of a constant that was broadcast to its shape -> of the constant."""
    shape = shape_of(call)
    if shape is None or not _is_elementwise(call):
        return None
    args = list(call.args)
    for i, arg in enumerate(args):
        constant = _repeated(walk, arg)
        others = [shape_of(other) for j, other in enumerate(args) if j != i]
        if constant is not None and None not in others:
            shapes = [one for one in (shape_of(constant), *others) if one is not None]
            args[i] = constant if np.broadcast_shapes(*shapes) == shape else arg
    if all(new.same_as(old) for new, old in zip(args, call.args, strict=True)):
        return None
    return Call(call.op, args, call.attrs, call.ty_args)


def fold_made(walk: Walk, call: Call) -> Expr | None:
    """The rule: comparisons and numbers of places, which masks are made of -> their values, if nothing repeats."""
    if op_name(call) == "relax.broadcast_to" or dtype_of(call) not in _MADE:
        return None
    return fold(walk, call)


def drop_zero(walk: Walk, call: Call) -> Expr | None:
    """The rule: `softmax(x + 0)` -> `softmax(x)`. (Elsewhere `x + 0` stays: it turns -0 into 0.)"""
    total = walk.defined_by(call.args[0], "relax.add")
    for x, other in [] if total is None else [total.args, (total.args[1], total.args[0])]:
        zero = _known(walk, other)
        if zero is not None and shape_of(x) == shape_of(total) and zero.size == 1 and not zero.any():
            return Call(call.op, [x], call.attrs, call.ty_args)
    return None


def _is_elementwise(call: Call) -> bool:
    return op_name(call).removeprefix("relax.") in _ELEMENTWISE


def _repeated(walk: Walk, arg: Expr) -> Expr | None:
    """The constant that `arg` is a broadcast of."""
    made = walk.definition(arg)
    if op_name(made) == "relax.broadcast_to" and is_const(made.args[0]):
        return made.args[0]
    if op_name(made) == "relax.full" and scalar_of(made.args[1]) is not None:
        return make_const(array_of(made.args[1]).reshape(()).astype(dtype_of(made)))  # type: ignore[union-attr]
    return None


def _known(walk: Walk, arg: Expr) -> Any:
    """As `operand_of`; a constant that was broadcast is seen so, in no more memory than its own."""
    constant = _repeated(walk, arg)
    if constant is None:
        return operand_of(walk, arg)
    shape = shape_of(arg)
    return None if shape is None else np.broadcast_to(array_of(constant), shape)  # type: ignore[arg-type]


_RULES: Rules = {
    "relax.where": (choose,),
    "relax.nn.softmax": (drop_zero,),
    "*": (compute_once, read_once, fold_made),
}


def repeated_constants(mod: IRModule) -> IRModule:
    """Masks that repeat along an axis are computed once and read in place."""
    return rewrite(mod, _RULES)
