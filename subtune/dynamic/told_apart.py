"""The greatest instance with as many subgraphs as others have.

Two paddings, to multiples of 4 and of 32, are one where the length is 64: subgraphs that are equal at an instance are
one function there. What other instances tell apart has to be apart in the module that all of them share.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.ir import Call, IRModule, Op

from subtune.passes.extract import groups_of
from subtune.passes.outline import SUBGRAPHS_ATTR
from subtune.pipeline import Prepared


def pairs(own: Sequence[str], wanted: Sequence[str]) -> dict[str, str] | None:
    """What the functions `wanted`, call by call, are called in `own`; None: they are no finer.

    >>> pairs(["pad", "pad"], ["pad", "pad_1"])
    {'pad': 'pad', 'pad_1': 'pad'}
    """
    found = dict(zip(wanted, own, strict=False))
    is_finer = len(own) == len(wanted) and all(found[name] == of for name, of in zip(wanted, own, strict=True))
    return found if is_finer else None


def told_apart(prepared: Prepared, wanted: Sequence[str], names: Sequence[str]) -> Prepared:
    """`prepared` with functions called `wanted`, call by call; itself where these are no finer.

    Args:
        names: of the subgraphs among them, in their order.
    """
    own = calls(prepared.mod)
    found = pairs(own, wanted)
    known = {subgraph.name: subgraph for subgraph in prepared.subgraphs}
    if found is None or list(wanted) == own or any(found.get(name) not in known for name in names):
        return prepared
    functions = {gvar.name_hint: func for gvar, func in prepared.mod.functions_items()}
    gvars = {name: relax.BlockBuilder().add_func(functions[of], name) for name, of in found.items()}
    made = {gvar: func for gvar, func in prepared.mod.functions_items() if gvar.name_hint not in {*own, "main"}}
    made |= {gvars[name]: functions[of] for name, of in found.items()}
    made[prepared.mod.get_global_var("main")] = _renamed(functions["main"], iter(wanted), gvars)
    subgraphs = tuple(
        replace(known[found[name]], name=name, uses=list(wanted).count(name), position=position)
        for position, name in enumerate(names)
    )
    groups = groups_of(prepared.mod)
    told = {name: groups[of] for name, of in found.items() if of in groups}
    mod = IRModule(made, prepared.mod.attrs, prepared.mod.global_infos).with_attr(SUBGRAPHS_ATTR, json.dumps(told))
    return replace(prepared, mod=mod, subgraphs=subgraphs)


def calls(mod: IRModule) -> list[str]:
    """Names of the PrimFuncs that `main` calls, in their order."""
    values = [_value(binding) for block in mod["main"].body.blocks for binding in block.bindings]
    return [value.args[0].name_hint for value in values if value is not None]


def _value(binding: Any) -> Any:
    value = binding.value
    return value if isinstance(value, Call) and value.op == Op.get("relax.call_tir") else None


def _renamed(main: Any, names: Any, gvars: Any) -> relax.Function:
    def renamed(binding: Any) -> Any:
        value = _value(binding)
        if value is None:
            return binding
        call = Call(value.op, [gvars[next(names)], *value.args[1:]], value.attrs, value.ty_args, ret_ty=value.ty)
        return relax.VarBinding(binding.var, call)

    blocks = [type(block)([renamed(binding) for binding in block.bindings]) for block in main.body.blocks]
    return relax.Function(main.params, relax.SeqExpr(blocks, main.body.body), main.ret_ty, main.is_pure, main.attrs)
