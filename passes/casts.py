"""Casts of halves where a kernel is that they can join: on the other side of views, one for each reader, or none.

    pool(reshape(astype(x16)))  ->  pool(astype(reshape(x16)))
    astype(reshape(pool(x)))    ->  reshape(astype(pool(x)))
    astype(take(astype(x16), i))  ->  take(x16, i)
    permute_dims(dequantize(q))   ->  dequantize(permute_dims(q))
    x = astype(x16);  norm(x);  add(x, y)    ->    norm(astype(x16));  add(astype(x16), y)

A view costs nothing and ends a group: a cast between a view and the model's input would be a kernel of its own. So
would be one that two kernels read, such as of the residual in front of a norm. What is only copied needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.core.numerics import BYTES, HALVES, OF_8_BITS
from subtune.passes.elementwise import has_one_tensor
from subtune.passes.exprs import Expr, dtype_of, op_name, shape_of
from subtune.passes.integer_products import move_integers
from subtune.passes.opkind import LOOKUPS
from subtune.passes.rewriter import Walk, rewrite, with_blocks

_FULL = "float32"


def casts_past_views(mod: tvm.IRModule) -> tvm.IRModule:
    """Casts to float32 after the views that follow them, to a half before those that they follow; none round copies.

    What is dequantised is moved as bytes.
    """
    return rewrite(
        mod,
        {
            "relax.reshape": (_widen_later, move_integers),
            "relax.permute_dims": (move_integers,),
            "relax.astype": (_round_sooner, _copied),
        },
    )


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


def _copied(walk: Walk, cast: Call) -> Expr | None:
    """`astype(take(astype(x16), i), half)` -> `take(x16, i)`."""
    gather = walk.definition(cast.args[0])
    if op_name(gather).removeprefix("relax.") not in LOOKUPS or dtype_of(cast) not in HALVES:
        return None
    table = walk.defined_by(gather.args[0], "relax.astype")
    if table is None or dtype_of(table.args[0]) != dtype_of(cast) or dtype_of(table) != _FULL:
        return None
    return Call(gather.op, [table.args[0], *gather.args[1:]], gather.attrs, gather.ty_args)


def casts_where_read(mod: tvm.IRModule) -> tvm.IRModule:
    """A cast to 32 bits of its own, of halves or bytes, for everything that reads one.

    The last pass: others would make them one again.
    """
    func = mod["main"]
    blocks, changed = [], False
    for block in func.body.blocks:
        bindings, made = _split_casts(block.bindings) if isinstance(block, relax.DataflowBlock) else ([], 0)
        blocks.append(relax.DataflowBlock(bindings) if made else block)
        changed = changed or bool(made)
    if not changed:
        return mod
    return with_blocks(mod, blocks)


def _split_casts(bindings: Sequence[Any]) -> tuple[list[Any], int]:
    """The bindings of a block, and how many casts they have more."""
    casts: dict[Any, Expr] = {}
    read: set[Any] = set()
    result: list[Any] = []
    made = 0
    for binding in bindings:
        value = binding.value
        again = [arg for arg in dict.fromkeys(_arguments(value)) if arg in casts and arg in read]
        read.update(arg for arg in _arguments(value) if arg in casts)
        own = {}
        for var in again:
            own[var] = relax.DataflowVar(f"{var.name}_{made}", casts[var].ty)
            result.append(relax.VarBinding(own[var], casts[var]))
            made += 1
        result.append(relax.VarBinding(binding.var, _with_arguments(value, own)) if own else binding)
        if isinstance(binding.var, relax.DataflowVar) and _is_widening(value):
            casts[binding.var] = value
    return result, made


def _is_widening(value: Expr) -> bool:
    if op_name(value) == "relax.dequantize":
        return has_one_tensor(value) and dtype_of(value.args[0]) in OF_8_BITS
    if op_name(value) != "relax.astype":
        return False
    given, made = dtype_of(value.args[0]), dtype_of(value)
    return (given in HALVES and made == _FULL) or (given in BYTES and made in (_FULL, "int32"))


def _arguments(value: Expr) -> list[Any]:
    """Of a call, those in tuples among them; of anything else none, so that it reads what the others read."""
    if not isinstance(value, Call):
        return []
    parts = [part for arg in value.args for part in (arg.fields if isinstance(arg, tvm.ir.Tuple) else (arg,))]
    return [part for part in parts if isinstance(part, relax.DataflowVar)]


def _with_arguments(value: Call, own: dict[Any, Any]) -> Call:
    def placed(arg: Any) -> Any:
        if isinstance(arg, tvm.ir.Tuple):
            return relax.BlockBuilder().normalize(tvm.ir.Tuple([placed(field) for field in arg.fields]))
        return own.get(arg, arg) if isinstance(arg, relax.DataflowVar) else arg

    return Call(value.op, [placed(arg) for arg in value.args], value.attrs, value.ty_args, ret_ty=value.ty)
