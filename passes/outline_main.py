"""The new main of an outlined module: one `R.call_tir` per group, and what the partition left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import networkx as nx
import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, IRModule

from subtune.core.graph import Kind, Origin, PartitionGraph, Tensor, Value
from subtune.passes.partition_read import Dataflow, Resolved


@dataclass(frozen=True, slots=True)
class CallSite:
    """A group's call: which PrimFunc, on which values, making which."""

    primfunc: str
    args: tuple[Value, ...]
    outputs: tuple[Value, ...]


def write_main(
    mod: IRModule,
    flow: Dataflow,
    graph: PartitionGraph,
    primfuncs: Mapping[str, Any],
    sites: Mapping[str, CallSite],
) -> IRModule:
    """Build the module of `primfuncs` and of a main with the parameters, results and attributes of `mod`'s.

    Args:
        sites: the call of each group, by the name of its anchor op.
    """
    bb = relax.BlockBuilder()
    gvars = {name: _add(bb, func, name) for name, func in primfuncs.items()}
    made: dict[Value, Any] = {}
    for param in flow.func.params:
        if isinstance(value := flow.resolved[param], Value):
            made[value] = param

    def var_of(value: Value) -> Any:
        """The variable that holds `value`; views are written where they are first needed."""
        if value in made:
            return made[value]
        if value.origin is Origin.CONSTANT:
            return flow.constants[value.source]
        base = _behind_views(graph, value)
        assert base != value, f"{value.source} is used before it is made"
        source = var_of(base)
        if base.tensor == value.tensor:
            made[value] = source
        elif base.origin is Origin.CONSTANT:
            made[value] = relax.const(source.value.numpy().reshape(value.tensor.shape), value.tensor.dtype)
        else:
            made[value] = bb.emit(relax.op.reshape(source, relax.ShapeExpr(value.tensor.shape)), value.source)
        return made[value]

    def argument(arg: Any) -> Any:
        if isinstance(arg, GlobalVar):
            return bb.add_func(flow.functions[arg.name_hint], arg.name_hint)
        return _argument(flow, arg, var_of)

    with bb.function("main", list(flow.func.params), attrs=_attrs(flow.func)):
        with bb.dataflow():
            for name in _order(graph):
                node = graph.op(name)
                if name in sites:
                    site = sites[name]
                    types = [tensor_type(value.tensor) for value in site.outputs]
                    args = relax.Tuple([var_of(value) for value in site.args])
                    call = relax.call_tir(gvars[site.primfunc], args, types if len(types) > 1 else types[0])
                    var = bb.emit(call, site.primfunc)
                    for i, value in enumerate(site.outputs):
                        made[value] = bb.emit(relax.TupleGetItem(var, i)) if len(types) > 1 else var
                elif node.kind is Kind.OPAQUE:
                    call = flow.calls[name]
                    var = bb.emit(same_call(call, [argument(arg) for arg in call.args]), name)
                    _define(made, flow.outputs[name], var, bb)
            result = bb.emit_output(assemble(flow.result, var_of))
        bb.emit_func_output(result)
    return relax.transform.DeadCodeElimination(["main"])(_with_mod_attrs(bb.get(), mod))


def assemble(resolved: Resolved, leaf: Callable[[Value], Any]) -> Any:
    """The expression for `resolved`, with `leaf` of each tensor, nested as the tuples are."""
    assert resolved is not None, "a tuple of tensors has an item that is none"
    if isinstance(resolved, Value):
        return leaf(resolved)
    return relax.Tuple([assemble(part, leaf) for part in resolved])


def same_call(call: Call, args: list[Any]) -> Any:
    """`call` on other arguments of the same types."""
    return tvm.ir.Call(call.op, args, call.attrs, call.ty_args, ret_ty=call.ty)


def tensor_type(tensor: Tensor) -> relax.TensorType:
    return relax.TensorType(tensor.shape, tensor.dtype)


def _add(bb: relax.BlockBuilder, func: Any, name: str) -> Any:
    gvar = bb.add_func(func, name)
    assert gvar.name_hint == name, f"the PrimFunc {name} was added as {gvar.name_hint}"
    return gvar


def _attrs(func: Any) -> dict[str, Any]:
    return {key: func.attrs[key] for key in func.attrs.keys()} if func.attrs else {}  # noqa: SIM118


def _order(graph: PartitionGraph) -> list[str]:
    """Anchors of groups and ops left in main, in execution order, as close to main's order as can be."""
    position = {name: i for i, name in enumerate(graph.dag)}
    first = {group.anchor: min(position[op] for op in group.ops) for group in graph.groups}
    return list(nx.lexicographical_topological_sort(graph.quotient(), key=lambda n: first.get(n, position[n])))


def _behind_views(graph: PartitionGraph, value: Value) -> Value:
    while value.origin is Origin.OP and graph.op(value.source).kind is Kind.VIEW:
        value = graph.op(value.source).inputs[0]
    return value


def _argument(flow: Dataflow, arg: Any, var_of: Callable[[Value], Any]) -> Any:
    resolved = flow.values_of(arg)
    return arg if resolved is None or resolved == () else assemble(resolved, var_of)


def _define(made: dict[Value, Any], outputs: Resolved, var: Any, bb: relax.BlockBuilder) -> None:
    """Enter what an opaque call makes, fields of a tuple one by one."""
    if isinstance(outputs, Value):
        made[outputs] = var
        return
    for i, value in enumerate(outputs or ()):
        assert isinstance(value, Value), "an opaque op makes nested tuples"
        made[value] = bb.emit(relax.TupleGetItem(var, i))


def _with_mod_attrs(made: IRModule, mod: IRModule) -> IRModule:
    for key in mod.attrs.keys() if mod.attrs else ():
        made = made.with_attr(key, mod.attrs[key])
    return made
