"""Outline: every group of a partition becomes one PrimFunc, and main becomes calls to them.

The module is frozen from here on: tuning and building use these very PrimFuncs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.ir import IRModule
from tvm_ffi import structural_equal, structural_hash

from subtune.core.errors import SubtuneError
from subtune.core.graph import Group, OpNode, Origin, PartitionGraph, Value
from subtune.core.workload import CONSTANT_ARGS_ATTR, SUM_BITS_ATTR, Workload
from subtune.passes.byte_sizes import SUM_BITS, sums_are_small
from subtune.passes.exprs import array_of, is_uniform
from subtune.passes.masks import computed, triangle_of
from subtune.passes.opkind import INLINE_0D, INLINE_SCALARS, INLINE_UNIFORM
from subtune.passes.outline_lower import lower
from subtune.passes.outline_main import CallSite, assemble, same_call, tensor_type, write_main
from subtune.passes.partition_read import Dataflow, read_dataflow

_RECIPROCAL = 1e-37
"""Of smaller numbers of float32 there is none."""

SUBGRAPHS_ATTR = "subtune.subgraphs"
"""Module attribute: JSON, GlobalVar name -> {"anchor", "ops"}."""


def outline(mod: IRModule, graph: PartitionGraph) -> IRModule:
    """Lower `mod` along `graph` (which `partition(mod)` made) to one PrimFunc per distinct group.

    `R.relu(R.add(R.nn.conv2d(x, w), b))` -> `R.call_tir(fused_conv2d_add_relu, (x, w, b))`. Tensors that are
    constants stay constants in main and are parameters of the PrimFunc, listed in its `layout_free_buffers`;
    scalar constants become literals. Views stay as `R.reshape`, opaque ops as they are.

    Raises:
        SubtuneError: TVM cannot lower a group to one PrimFunc.
    """
    flow = read_dataflow(mod)
    assert set(flow.dag) == set(graph.dag), "the partition is of another module"
    functions = [_primitive(flow, graph, group) for group in graph.groups]
    distinct = _distinct([function for function, _ in functions])
    first = _first_of_each(distinct)
    lowered = lower(
        [functions[position][0] for position in first],
        [graph.groups[position].name for position in first],
        _prim_funcs(mod, flow),
    )
    names, primfuncs = _named(graph, [lowered[index] for index in distinct], functions)
    sites = {
        group.anchor: CallSite(name, args, group.outputs)
        for group, name, (_, args) in zip(graph.groups, names, functions, strict=True)
    }
    primfuncs_only = {name: func for name, (func, _) in primfuncs.items()}
    ops = {
        name: {"anchor": graph.op(group.anchor).op, "ops": [graph.op(op).op for op in group.ops]}
        for name, (_, group) in primfuncs.items()
    }
    return write_main(mod, flow, graph, primfuncs_only, sites).with_attr(SUBGRAPHS_ATTR, json.dumps(ops))


def workloads_of(mod: IRModule, graph: PartitionGraph, groups: Sequence[Group]) -> tuple[Workload | SubtuneError, ...]:
    """What `outline` would make of each of `groups`, which are over `graph`'s ops; or why it would not."""
    flow = read_dataflow(mod)
    functions = [_primitive(flow, graph, group)[0] for group in groups]
    distinct = _distinct(functions)
    prim_funcs = _prim_funcs(mod, flow)
    made = [_lowered(functions[i], groups[i], prim_funcs) for i in _first_of_each(distinct)]
    return tuple(made[index] for index in distinct)


def _lowered(function: Any, group: Group, prim_funcs: Mapping[Any, Any]) -> Workload | SubtuneError:
    try:
        (func,) = lower([function], [group.name], prim_funcs)
        return Workload.of(func, len(group.outputs))
    except SubtuneError as e:
        return e
    except Exception as e:  # TVM's passes may not foresee a group that the partition would not make
        return SubtuneError(f"TVM cannot lower the subgraph {group.name} to one kernel: {type(e).__name__}: {e}")


def _first_of_each(classes: Sequence[int]) -> list[int]:
    """The first position of each class."""
    first = {index: position for position, index in reversed(list(enumerate(classes)))}
    return [first[index] for index in range(len(first))]


def _prim_funcs(mod: IRModule, flow: Dataflow) -> dict[Any, Any]:
    """The PrimFuncs that main calls already."""
    return {gvar: flow.functions[gvar.name_hint] for gvar in mod.get_global_vars() if gvar.name_hint in flow.functions}


def _primitive(flow: Dataflow, graph: PartitionGraph, group: Group) -> tuple[Any, tuple[Value, ...]]:
    """The group as a Relax function with attribute Primitive, and the values its parameters stand for."""
    params: dict[Value, Any] = {}
    made: dict[Value, Any] = {}
    bindings: list[Any] = []
    builder = relax.BlockBuilder()

    def emit(expr: Any) -> Any:
        call = builder.normalize(expr)
        bindings.append(relax.VarBinding(relax.DataflowVar(f"f{len(bindings)}", call.ty), call))
        return bindings[-1].var

    def operand(node: OpNode, value: Value) -> Any:
        if value in made:
            return made[value]
        if value.origin is Origin.CONSTANT and not _is_of_layer(graph, node, value, flow.constants[value.source]):
            scalar = _literal(node, value, flow.constants)
            if scalar is not None:
                return scalar
        if (
            value.origin is Origin.CONSTANT
            and (mask := _mask(node, value, flow.constants[value.source], emit)) is not None
        ):
            made[value] = mask
            return mask
        if value not in params:
            params[value] = relax.Var(f"p{len(params)}", tensor_type(value.tensor))
        return params[value]

    def rebuild(node: OpNode, arg: Any) -> Any:
        resolved = flow.values_of(arg)
        if resolved is None or resolved == ():
            return arg
        return assemble(resolved, lambda value: operand(node, value))

    for name in group.ops:
        node, call = graph.op(name), flow.calls[name]
        args = [rebuild(node, arg) for arg in call.args]
        var = relax.DataflowVar(name, call.ty)
        bindings.append(relax.VarBinding(var, same_call(call, args)))
        if isinstance(call.ty, relax.TensorType):
            made[Value(Origin.OP, name, node.output)] = var
            continue
        for i, tensor in enumerate(node.outputs):
            item = relax.DataflowVar(f"{name}_{i}", call.ty.fields[i])
            bindings.append(relax.VarBinding(item, relax.TupleGetItem(var, i)))
            made[Value(Origin.OP, name, tensor, i)] = item
    results = [made[value] for value in group.outputs]
    out = relax.Var("out", results[0].ty if len(results) == 1 else tvm.ir.TupleType([r.ty for r in results]))
    bindings.append(relax.VarBinding(out, results[0] if len(results) == 1 else relax.Tuple(results)))
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], out)
    constants = [i for i, value in enumerate(params) if value.origin is Origin.CONSTANT]
    attrs = {"Primitive": True, CONSTANT_ARGS_ATTR: constants}
    if sums_are_small(map(graph.op, group.ops), flow.constants):
        attrs[SUM_BITS_ATTR] = SUM_BITS
    function = relax.Function(list(params.values()), body, out.ty, is_pure=True, attrs=tvm.ir.DictAttrs(attrs))
    return function, tuple(params)


def _is_of_layer(graph: PartitionGraph, node: OpNode, value: Value, const: Any) -> bool:
    """Whether a number is of quantised arithmetic: scales and zero points, and what they are in sums and products of
    integers. They differ from layer to layer, and layers that differ in nothing else are one workload.

    0 and 1 are not: where there is nothing to be added or multiplied, there is nothing to be loaded. Neither is a scale
    without a reciprocal.
    """
    if value.tensor.numel != 1 or value.tensor.shape != ():
        return False
    number = abs(float(const.value.numpy()))
    if number in (0.0, 1.0) or number < _RECIPROCAL:
        return False
    if node.op in ("quantize", "dequantize"):
        return True
    if node.op in ("add", "subtract", "multiply") and node.output.dtype == "int32":
        return True
    others = [graph.op(v.source) for v in node.inputs if v != value and v.origin is Origin.OP]
    if node.op == "add" and any(o.op == "dequantize" for o in others):
        return True
    return node.op == "multiply" and any(o.op == "astype" and o.inputs[0].tensor.dtype == "int32" for o in others)


def _literal(node: OpNode, value: Value, constants: Mapping[Any, Any]) -> Any | None:
    """The constant of rank 0 that legalisation turns into a literal; None if it has to be a parameter."""
    const = constants[value.source]
    if node.op in INLINE_UNIFORM and value != node.inputs[0] and (array := array_of(const)) is not None:
        arrays = [array_of(constants[v.source]) for v in node.inputs[1:] if v.origin is Origin.CONSTANT]
        # either all of a norm's vectors are numbers, or none is
        are_numbers = len(arrays) == len(node.inputs) - 1 and all(a is not None and is_uniform(a) for a in arrays)
        return relax.const(array.flat[0], value.tensor.dtype) if are_numbers else None
    if value.tensor.numel != 1:
        return None
    if node.op in INLINE_0D and value.tensor.shape == ():
        return const
    if node.op not in INLINE_SCALARS:
        return None
    others = [v.tensor for v in node.inputs if v != value]
    keeps_shape = any(len(t.shape) >= len(value.tensor.shape) for t in others)
    return relax.const(const.value.numpy().reshape(()), value.tensor.dtype) if keeps_shape else None


def _mask(node: OpNode, value: Value, const: Any, emit: Callable[[Any], Any]) -> Any | None:
    """What stands for a constant that is a triangle; None if it has to be a parameter."""
    if node.op not in INLINE_SCALARS or value.tensor.numel == 1 or len(node.inputs) < 2:
        return None
    if all(other.tensor.shape != node.output.shape for other in node.inputs if other != value):
        return None
    array = array_of(const)
    triangle = None if array is None else triangle_of(array)
    return None if triangle is None else computed(triangle, value.tensor.dtype, emit)


def _distinct(functions: list[Any]) -> list[int]:
    """For each function the index of its class of structurally equal ones; classes in order of appearance."""
    classes: dict[int, list[tuple[Any, int]]] = {}
    result: list[int] = []
    total = 0
    for function in functions:
        same_hash = classes.setdefault(structural_hash(function), [])
        index = next((i for other, i in same_hash if structural_equal(other, function)), None)
        if index is None:
            index, total = total, total + 1
            same_hash.append((function, index))
        result.append(index)
    return result


def _named(
    graph: PartitionGraph, lowered: list[Any], functions: list[tuple[Any, tuple[Value, ...]]]
) -> tuple[list[str], dict[str, tuple[Any, Group]]]:
    """The PrimFunc name for each group, and the distinct PrimFuncs by name, each with its first group."""
    by_key: dict[str, list[tuple[Any, str]]] = {}
    names: list[str] = []
    primfuncs: dict[str, tuple[Any, Group]] = {}
    counts: dict[str, int] = {}
    for group, func in zip(graph.groups, lowered, strict=True):
        same_key = by_key.setdefault(Workload.of(func, len(group.outputs)).key, [])
        name = next((n for other, n in same_key if structural_equal(other, func)), None)
        if name is None:
            name = _fresh("_".join(["fused"] * (len(group.ops) > 1) + [_base(graph, group)]), counts)
            same_key.append((func, name))
            primfuncs[name] = (func, group)
        names.append(name)
    return names, primfuncs


def _base(graph: PartitionGraph, group: Group) -> str:
    base = "_".join(graph.op(name).short for name in group.ops)
    return base if len(base) <= 60 else f"{base[:60].rstrip('_')}_etc"


def _fresh(base: str, counts: dict[str, int]) -> str:
    # "main" and names of C's library would clash at link time; a lone op keeps TVM's habit of a prefix
    base = base if base.startswith("fused_") else f"tir_{base}"
    counts[base] = counts.get(base, -1) + 1
    return f"{base}_{counts[base]}" if counts[base] else base
