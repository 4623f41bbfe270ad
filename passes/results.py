"""What a model gives back, copied from where it lies: slices and transposes of its own for every such result.

    k = slice(qkv);  scores(q, k);  give back k    ->    scores(q, slice(qkv));  give back slice(qkv)

What only one kernel reads it can read in place; a copy that is given back as well would have to be made first. A cast
on the way is copied, too: a model of float32 whose products are of halves gives back its keys and values cast.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call

from subtune.passes.exprs import is_const, op_name, shape_of
from subtune.passes.rewriter import with_blocks
from subtune.passes.uses import count_uses

_MOVES = ("relax.permute_dims", "relax.strided_slice")
_VIEW, _CAST = "relax.reshape", "relax.astype"


def copies_for_results(mod: tvm.IRModule) -> tvm.IRModule:
    """Moves of its own for each result that kernels read as well. A later pass that makes equal calls one undoes it."""
    func = mod["main"]
    block = func.body.blocks[-1] if func.body.blocks else None
    if not isinstance(block, relax.DataflowBlock) or not isinstance(block.bindings[-1].value, tvm.ir.Tuple):
        return mod
    *bindings, given = block.bindings
    if not given.var.same_as(func.body.body):
        return mod
    uses, values = count_uses(func), {binding.var: binding.value for binding in bindings}
    own: dict[Any, Any] = {}
    replaced: set[Any] = set()
    for result in dict.fromkeys(given.value.fields):
        chain = _chain(result, values)
        is_shared = any(uses.get(var, 0) > 1 for var in chain)
        if is_shared and any(op_name(values[var]) in _MOVES for var in chain):
            own[result] = _copied(chain, values, bindings)
            replaced.update(takewhile(lambda var: uses.get(var, 0) == 1, chain))
    if not own:
        return mod
    results = relax.VarBinding(given.var, tvm.ir.Tuple([own.get(field, field) for field in given.value.fields]))
    kept = [binding for binding in bindings if binding.var not in replaced]
    return with_blocks(mod, [*func.body.blocks[:-1], relax.DataflowBlock([*kept, results])])


def constants_copied(mod: tvm.IRModule) -> tvm.IRModule:
    """Copies of the constants that a model gives back: where shapes vary, an instance gives back a part, or another."""
    func = mod["main"]
    block = func.body.blocks[-1] if func.body.blocks else None
    if block is None or not block.bindings[-1].var.same_as(func.body.body):
        return mod
    *bindings, given = block.bindings
    values = {binding.var: binding.value for one in func.body.blocks for binding in one.bindings}
    builder = relax.BlockBuilder()

    def copied(field: Any) -> Any:
        source = field
        while isinstance(source, tvm.ir.Var) and source in values:
            source = values[source]
        return builder.normalize(relax.op.broadcast_to(source, shape_of(source))) if is_const(source) else None

    if not isinstance(given.value, tvm.ir.Tuple):
        copy = copied(given.var)
        return mod if copy is None else _ending(mod, [*bindings, relax.VarBinding(given.var, copy)])
    fields = []
    for i, field in enumerate(given.value.fields):
        copy = copied(field)
        if copy is not None:
            field = relax.DataflowVar(f"constant{i}", copy.ty)
            bindings.append(relax.VarBinding(field, copy))
        fields.append(field)
    return _ending(mod, [*bindings, relax.VarBinding(given.var, tvm.ir.Tuple(fields))])


def _ending(mod: tvm.IRModule, bindings: list[Any]) -> tvm.IRModule:
    """`mod` with other bindings in its last block."""
    *before, last = mod["main"].body.blocks
    return with_blocks(mod, [*before, type(last)(bindings)])


def _chain(result: Any, values: dict[Any, Any]) -> list[Any]:
    """The variables from `result` back to what is more than moved and cast; it begins with a move.

    So those who read them and those who copy them read one input.
    """
    chain: list[Any] = []
    var = result
    while isinstance(var, tvm.ir.Var) and op_name(values.get(var)) in (*_MOVES, _VIEW, _CAST):
        chain.append(var)
        var = values[var].args[0]
    while chain and op_name(values[chain[-1]]) not in _MOVES:
        chain.pop()
    return chain


def _copied(chain: list[Any], values: dict[Any, Any], bindings: list[Any]) -> Any:
    """The same moves once more, at the end of `bindings`: the variable of the result."""
    source = values[chain[-1]].args[0]
    for var in reversed(chain):
        call = values[var]
        copy = relax.DataflowVar(f"{var.name}_given", call.ty)
        moved = Call(call.op, [source, *call.args[1:]], call.attrs, call.ty_args, ret_ty=call.ty)
        bindings.append(relax.VarBinding(copy, moved))
        source = copy
    return source
