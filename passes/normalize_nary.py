"""ONNX Sum, Mean, Max and Min of several tensors, which TVM imports as broadcast + stack + reduction.

    sum(stack((broadcast_to(a), b)), axis=0)   ->   add(a, b)

A stack copies every operand and a reduction cannot be fused into what computed them; a chain of adds is elementwise.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, dtype_of, ints, is_float, make_const, op_name, positive_axis, shape_of
from subtune.passes.rewriter import Rules, Walk, rewrite

_PAIRWISE = {
    "relax.sum": relax.op.add,
    "relax.mean": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}

MAX_OPERANDS = 32
"""A longer chain is no longer obviously better than a reduction."""


def unstack_reduction(walk: Walk, call: Call) -> Expr | None:
    stack = walk.defined_by(call.args[0], "relax.stack")
    if stack is None or not walk.has_one_use(call.args[0]):
        return None
    shape, parts = shape_of(stack), walk.definition(stack.args[0])
    if shape is None or call.attrs.axis is None or not isinstance(parts, tvm.ir.Tuple):
        return None
    axis = positive_axis(stack.attrs.axis or 0, len(shape))
    if [positive_axis(a, len(shape)) for a in ints(call.attrs.axis)] != [axis]:
        return None
    if len(parts.fields) > MAX_OPERANDS:
        return None
    if op_name(call) == "relax.mean" and not is_float(dtype_of(call)):
        return None
    joint = shape[:axis] + shape[axis + 1 :]
    operands = _without_broadcast(walk, list(parts.fields), joint)
    result = reduce(_PAIRWISE[op_name(call)], operands)
    if op_name(call) == "relax.mean":
        result = relax.op.divide(result, make_const(np.array(len(operands), dtype_of(call))))
    return relax.op.reshape(result, shape_of(call)) if call.attrs.keepdims else result


def _without_broadcast(walk: Walk, operands: list[Expr], joint: tuple[int, ...]) -> list[Expr]:
    """The operands before their broadcasts, when broadcasting them pairwise gives the same joint shape."""
    sources = []
    for operand in operands:
        broadcast = walk.defined_by(operand, "relax.broadcast_to")
        sources.append(operand if broadcast is None else broadcast.args[0])
    shapes = [shape_of(source) for source in sources]
    if any(shape is None for shape in shapes) or np.broadcast_shapes(*[s or () for s in shapes]) != joint:
        return operands
    return sources


NARY: Rules = dict.fromkeys(_PAIRWISE, (unstack_reduction,))


def unstack_nary(mod: tvm.IRModule) -> tvm.IRModule:
    """Reductions of stacked tensors -> chains of elementwise operators."""
    return rewrite(mod, NARY)
