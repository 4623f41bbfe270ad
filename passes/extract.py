"""Extract: the distinct workloads of an outlined module, each tuned once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm
from tvm.ir import Call, IRModule, Op, TupleType

from subtune.core.graph import Subgraph
from subtune.core.workload import Workload
from subtune.passes.outline import SUBGRAPHS_ATTR


def extract(mod: IRModule) -> tuple[Subgraph, ...]:
    """The PrimFuncs that main calls, in order of their first call; not the importers' that the partition left.

    Args:
        mod: what `outline` made.
    """
    calls = list(_group_calls(mod))
    uses = Counter(str(call.args[0].name_hint) for call in calls)
    ops = groups_of(mod)
    found: dict[str, Subgraph] = {}
    for position, call in enumerate(calls):
        name = str(call.args[0].name_hint)
        if name not in found:
            about = ops.get(name, {"anchor": name, "ops": [name]})
            workload = Workload.of(mod[name], num_outputs(call))
            found[name] = Subgraph(name, workload, about["anchor"], tuple(about["ops"]), uses[name], position)
    return tuple(found.values())


def tir_calls(mod: IRModule) -> Iterator[Any]:
    """The `R.call_tir` of main, in order."""
    call_tir = Op.get("relax.call_tir")
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            if isinstance(binding.value, Call) and binding.value.op == call_tir:
                yield binding.value


def _group_calls(mod: IRModule) -> Iterator[Any]:
    groups = groups_of(mod)
    return (call for call in tir_calls(mod) if not groups or str(call.args[0].name_hint) in groups)


def groups_of(mod: IRModule) -> dict[str, Any]:
    """What `outline` wrote down of each PrimFunc, by its name."""
    found: dict[str, Any] = json.loads(mod.attrs[SUBGRAPHS_ATTR]) if mod.attrs and SUBGRAPHS_ATTR in mod.attrs else {}
    return found


def call_names(mod: IRModule) -> tuple[str, ...]:
    """The PrimFunc behind each group of the partition, in the groups' order."""
    return tuple(str(call.args[0].name_hint) for call in _group_calls(mod))


def num_outputs(call: Call) -> int:
    """How many tensors a `R.call_tir` makes."""
    ty: tvm.ir.Type = call.ty_args[0]
    return len(ty.fields) if isinstance(ty, TupleType) else 1
