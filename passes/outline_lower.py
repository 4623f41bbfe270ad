"""Lowering: Relax functions marked Primitive to one schedulable PrimFunc each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule

from subtune.core.errors import SubtuneError
from subtune.core.workload import CONSTANT_ARGS_ATTR, SUM_BITS_ATTR
from subtune.passes.legalize import LEGALIZATIONS

OP_PATTERN_ATTR = "op_pattern"
OPAQUE_PATTERN = 8
"""TVM's kOpaque: keeps the FuseOps of the default build pipeline from fusing our PrimFuncs any further."""


_PREFIX = "subtune_group_"


def lower(functions: list[Any], names: list[str], prim_funcs: Mapping[Any, Any]) -> list[Any]:
    """Lower each function to a PrimFunc in destination-passing style, inputs first.

    Args:
        functions: Relax functions with attribute Primitive; `layout_free_buffers` is carried over.
        names: what each is called in an error.
        prim_funcs: the PrimFuncs that the functions call already, by GlobalVar.

    Raises:
        SubtuneError: a function does not become exactly one PrimFunc.
    """
    if not functions:
        return []
    mod = _driver(functions)
    mod.update(IRModule(dict(prim_funcs)))
    mod = relax.transform.LegalizeOps(LEGALIZATIONS)(mod)
    for name, index in zip(names, range(len(functions)), strict=True):
        _require_legalized(name, mod[f"{_PREFIX}{index}"])
    mod = relax.transform.FuseTIR()(mod)
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [call for call in calls if isinstance(call, tvm.ir.Call)][: len(functions)]
    return [_finish(mod, call, function) for call, function in zip(calls, functions, strict=True)]


def _driver(functions: list[Any]) -> IRModule:
    """A module with a main that calls every function, each on parameters of its own."""
    bb = relax.BlockBuilder()
    gvars = []
    for i, function in enumerate(functions):
        gvars.append(bb.add_func(function, f"{_PREFIX}{i}"))
    params = [
        [relax.Var(f"{_PREFIX}{i}_{param.name}", param.ty) for param in function.params]
        for i, function in enumerate(functions)
    ]
    with bb.function("main", [param for group in params for param in group]):
        with bb.dataflow():
            results = [bb.emit(tvm.ir.Call(gvar, args)) for gvar, args in zip(gvars, params, strict=True)]
            output = bb.emit_output(relax.Tuple(results))
        bb.emit_func_output(output)
    return bb.get()


def _require_legalized(name: str, function: Any) -> None:
    for block in function.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, tvm.ir.Call) and value.op != tvm.ir.Op.get("relax.call_tir"):
                raise SubtuneError(
                    f"TVM cannot lower {getattr(value.op, 'name', value.op)} in the subgraph {name} to loops: "
                    f"it has no legalisation for {value.attrs}."
                )


def _finish(mod: IRModule, call: relax.Call, function: Any) -> Any:
    assert call.op == tvm.ir.Op.get("relax.call_tir"), f"FuseTIR left {call.op}"
    func = mod[call.args[0]]
    constants = [int(i) for i in function.attrs[CONSTANT_ARGS_ATTR]]
    assert len(func.params) > len(function.params), "FuseTIR dropped a parameter"
    for attr in ("global_symbol", "Primitive"):
        func = func.without_attr(attr)
    func = func.with_attr(CONSTANT_ARGS_ATTR, constants).with_attr(OP_PATTERN_ATTR, OPAQUE_PATTERN)
    if SUM_BITS_ATTR in function.attrs:
        func = func.with_attr(SUM_BITS_ATTR, function.attrs[SUM_BITS_ATTR])
    return func.with_attr("tirx.noalias", True)
