"""Matmuls of one activation by several constants, side by side: one matmul, and slices of it.

    q = x @ Wq + bq;  k = x @ Wk + bk;  v = x @ Wv + bv   ->   qkv = x @ [Wq Wk Wv] + [bq bk bv];  q = qkv[:, 0:N]; ...

where the results are only moved (attention's heads): what computes on one of them would have to wait for all, as a
kernel of its own, where it is an epilogue now.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import Expr, array_of, dtype_of, ints, is_const, make_const, op_name, positive_axis, shape_of
from subtune.passes.rewriter import Rules, Walk, rewrite

_MOVES = frozenset(f"relax.{name}" for name in ("reshape", "permute_dims", "strided_slice", "split"))


@dataclass(frozen=True, slots=True)
class _Part:
    """Columns `begin` to `end` of the joined matmul by `weight`, `bias` added; `own_bias` is that of these columns.

    Columns without a bias of their own have zeros in the joined one.
    """

    begin: int
    end: int
    weight: Expr
    bias: Expr | None
    own_bias: Expr | None


@dataclass(frozen=True, slots=True)
class _Branch:
    """`result = activation @ weight + bias`, the bias or not."""

    activation: Any
    weight: Expr
    bias: Expr | None
    result: Any


def join_siblings(mod: tvm.IRModule) -> tvm.IRModule:
    """Join the matmuls of `main` that share their activation, where their results are only moved."""
    if not isinstance(mod["main"].body, relax.SeqExpr):
        return mod
    parts: dict[tuple[Any, Any], _Part] = {}
    for block in mod["main"].body.blocks:
        if isinstance(block, relax.DataflowBlock):
            for siblings in _siblings(block.bindings):
                parts |= _joined(siblings)
    if not parts:
        return mod

    def of_product(walk: Walk, call: Call) -> Expr | None:
        part = parts.get((call.args[0], call.args[1]))
        return None if part is None or part.own_bias is not None else _slice(call, part)

    def of_sum(walk: Walk, call: Call) -> Expr | None:
        product = next((p for arg in call.args if (p := walk.defined_by(arg, "relax.matmul")) is not None), None)
        part = None if product is None else parts.get((product.args[0], product.args[1]))
        if part is None or part.own_bias is None or not any(arg.same_as(part.own_bias) for arg in call.args):
            return None
        return _slice(product, part)

    rules: Rules = {"relax.matmul": (of_product,), "relax.add": (of_sum,), "relax.reshape": (view_before_slice,)}
    return rewrite(mod, rules)


def view_before_slice(walk: Walk, call: Call) -> Expr | None:
    """`view(x[..., b:e])` -> a slice of the view of x, where the view takes whole heads: such a slice moves nothing."""
    cut, shape = walk.defined_by(call.args[0], "relax.strided_slice"), shape_of(call)
    if cut is None or shape is None or not walk.has_one_use(call.args[0]):
        return None
    source, columns = shape_of(cut.args[0]), _last_columns(walk, cut)
    if source is None or columns is None:
        return None
    begin, end = columns
    for axis in range(1, len(shape)):
        each = prod(shape[axis + 1 :])
        if prod(shape[:axis]) != prod(source[:-1]) or shape[axis] * each != end - begin:
            continue
        if each == 1 or source[-1] % each or begin % each:
            return None
        whole = relax.op.reshape(cut.args[0], (*shape[:axis], source[-1] // each, *shape[axis + 1 :]))
        return relax.op.strided_slice(whole, [axis], [begin // each], [end // each])
    return None


def _last_columns(walk: Walk, cut: Any) -> tuple[int, int] | None:
    """Where a slice of the last axis, and of no other, begins and ends; None where that is computed by the model."""
    shape, numbers = shape_of(cut.args[0]), []
    for arg in cut.args[1:5]:
        values = walk.definition(arg)
        if not isinstance(values, tvm.ir.Tuple) or not all(isinstance(v, tvm.tirx.IntImm) for v in values.fields):
            return None
        numbers.append(ints(values.fields))
    if shape is None or any(len(number) != 1 for number in numbers[:3]) or (len(numbers) > 3 and numbers[3] != (1,)):
        return None
    ((axis,), (begin,), (end,), *_) = numbers
    is_last = positive_axis(axis, len(shape)) == len(shape) - 1
    return (begin, min(end, shape[-1])) if is_last and 0 <= begin < end else None


def _slice(product: Any, part: _Part) -> Expr:
    whole = relax.op.matmul(product.args[0], part.weight, product.attrs.out_dtype)
    if part.bias is not None:
        whole = relax.op.add(whole, part.bias)
    return relax.op.strided_slice(whole, [1], [part.begin], [part.end])


def _joined(siblings: list[_Branch]) -> dict[tuple[Any, Any], _Part]:
    weight = make_const(np.concatenate([_array(one.weight) for one in siblings], axis=1))
    bias = None
    if any(one.bias is not None for one in siblings):
        bias = make_const(np.concatenate([_bias(one) for one in siblings]))
    found, begin = {}, 0
    for one in siblings:
        end = begin + (shape_of(one.weight) or ())[1]
        found[one.activation, one.weight] = _Part(begin, end, weight, bias, one.bias)
        begin = end
    return found


def _bias(one: _Branch) -> np.ndarray:
    if one.bias is not None:
        return _array(one.bias).reshape(-1)
    return np.zeros((shape_of(one.weight) or ())[1], _array(one.weight).dtype)


def _array(constant: Expr) -> np.ndarray:
    array = array_of(constant)
    assert array is not None
    return array


def _siblings(bindings: Any) -> Iterator[list[_Branch]]:
    """Branches that can be joined, by their activation."""
    users: dict[Any, list[Any]] = {}
    for binding in bindings:
        for var in relax.analysis.free_vars(binding.value):
            users.setdefault(var, []).append(binding)
    by_activation: dict[tuple[Any, str], list[_Branch]] = {}
    for binding in bindings:
        branch = _branch(binding, users)
        if branch is not None:
            by_activation.setdefault((branch.activation, dtype_of(branch.result)), []).append(branch)
    for branches in by_activation.values():
        weights = {branch.weight for branch in branches}
        if len(branches) > 1 and len(weights) == len(branches):
            yield branches


def _branch(binding: Any, users: dict[Any, list[Any]]) -> _Branch | None:
    """The branch that begins with a binding, or None where that is no matmul by a constant, or more than moved."""
    call = binding.value
    if op_name(call) != "relax.matmul" or not isinstance(call.args[0], tvm.ir.Var):
        return None
    shape, weight = shape_of(call.args[0]), call.args[1]
    if shape is None or len(shape) != 2 or not is_const(weight) or len(shape_of(weight) or ()) != 2:
        return None
    result, bias = binding, None
    after = users.get(binding.var, [])
    if len(after) == 1 and op_name(after[0].value) == "relax.add":
        (result,) = after
        others = [arg for arg in result.value.args if not arg.same_as(binding.var)]
        if len(others) != 1 or not _is_row(others[0], shape_of(weight)):
            return None
        bias = others[0]
    uses = users.get(result.var, [])
    is_moved = all(op_name(use.value) in _MOVES for use in uses)
    if not uses or not is_moved or not isinstance(result.var, relax.DataflowVar):
        return None
    return _Branch(call.args[0], weight, bias, result.var)


def _is_row(bias: Expr, weight: tuple[int, ...] | None) -> bool:
    shape = shape_of(bias)
    return (
        is_const(bias)
        and shape is not None
        and weight is not None
        and shape[-1:] == weight[1:]
        and all(extent == 1 for extent in shape[:-1])
        and len(shape) <= 2
    )
