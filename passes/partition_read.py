"""Reading `main`: every op as an `OpNode`, every tensor traced to the op, input or constant that made it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import networkx as nx
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar, IRModule, Op

from subtune.core.errors import SubtuneError
from subtune.core.graph import Kind, OpNode, Origin, Tensor, Value
from subtune.passes.elementwise import is_lookup
from subtune.passes.opkind import VIEWS, is_unit_permutation, kind_of, reads_of
from subtune.tir.expressions import loads

Resolved = Value | tuple["Resolved", ...] | None
"""Where an expression's tensors come from; None for what is no tensor (shapes, attributes)."""

# TVM's OpPatternKind: element-wise, broadcast, injective; reduction, and one that element-wise operators may follow
_KIND_OF_PATTERN = {0: Kind.ELEMENTWISE, 1: Kind.ELEMENTWISE, 2: Kind.MOVEMENT}
_REDUCING_PATTERNS = (3, 4)

SHAPE = "shape"
"""The dtype we write for values that are no tensors but shapes."""


@dataclass(frozen=True, slots=True)
class Dataflow:
    """`main` taken apart. `calls` and `constants` hold the Relax objects behind names, `outputs` what each op makes.

    `functions` are the PrimFuncs that main calls already (importers write some ops as loops), each with TVM's
    `op_pattern`.
    """

    func: relax.Function
    dag: nx.DiGraph
    calls: Mapping[str, Any]
    constants: Mapping[str, Any]
    outputs: Mapping[str, Resolved]
    resolved: Mapping[Any, Resolved]
    result: Resolved
    functions: Mapping[str, Any]

    def values_of(self, expr: Any) -> Resolved:
        """Where the operand `expr` of a call comes from."""
        if isinstance(expr, relax.Var):
            return self.resolved[expr]
        if isinstance(expr, GenericConst):
            return _constant(self.resolved, expr)
        if isinstance(expr, relax.Tuple):
            fields = tuple(self.values_of(field) for field in expr.fields)
            return fields if any(field is not None for field in fields) else None
        if isinstance(expr, relax.TupleGetItem):
            whole = self.values_of(expr.tuple_value)
            assert isinstance(whole, tuple), f"{expr} takes an item of what is no tuple"
            return whole[expr.index]
        return None


def read_dataflow(mod: IRModule) -> Dataflow:
    """Take `mod["main"]` apart.

    Raises:
        SubtuneError: there is no `main`, it calls another function, or it holds control flow.
    """
    func = _main(mod)
    dag = nx.DiGraph()
    calls: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    outputs: dict[str, Resolved] = {}
    resolved: dict[Any, Resolved] = {}
    counts: dict[str, int] = {}
    for param in func.params:
        resolved[param] = _input(param)
    flow = Dataflow(func, dag, calls, constants, outputs, resolved, None, _prim_funcs(mod))

    def note_constants(expr: Any) -> None:
        if isinstance(expr, GenericConst) and expr not in resolved and _is_tensor(expr.ty):
            name = f"const_{len(constants)}"
            constants[name] = expr
            resolved[expr] = Value(Origin.CONSTANT, name, tensor_of(expr.ty))
        for part in _parts(expr):
            note_constants(part)

    for binding in _bindings(func):
        var, value = binding.var, binding.value
        note_constants(value)
        if isinstance(value, Call) and not isinstance(binding, relax.MatchCast):
            node = _node(flow, _name(op_name(value), counts), value)
            dag.add_node(node.name, op=node)
            for operand in node.inputs:
                if operand.origin is Origin.OP:
                    dag.add_edge(operand.source, node.name)
            calls[node.name] = value
            resolved[var] = outputs[node.name] = _outputs(node, value.ty)
        elif isinstance(value, relax.If | relax.Function):
            raise SubtuneError(f"main holds control flow at {var.name}: only straight-line models can be partitioned.")
        else:
            resolved[var] = flow.values_of(value)
    body = func.body.body if isinstance(func.body, relax.SeqExpr) else func.body
    note_constants(body)
    result = flow.values_of(body)
    _drop_dead(dag, flatten(result))
    return replace(flow, result=result)


def flatten(resolved: Resolved) -> tuple[Value, ...]:
    """All tensors of an operand, in order."""
    if resolved is None:
        return ()
    if isinstance(resolved, Value):
        return (resolved,)
    return tuple(value for part in resolved for value in flatten(part))


def tensor_of(ty: Any) -> Tensor:
    """The `Tensor` for a Relax tensor type; unknown rank and dims are `?`."""
    dims = ty.shape
    if dims is None or not isinstance(dims, relax.ShapeExpr):
        return Tensor(("?",) * max(ty.ndim, 1), str(ty.dtype))
    return Tensor(tuple(int(d) if isinstance(d, tvm.tirx.IntImm) else str(d) for d in dims.values), str(ty.dtype))


def op_name(call: Call) -> str:
    """The op's name without `relax.`; for a PrimFunc, `tir.` and its name without the number that made it unique."""
    if isinstance(call.op, Op) and not (call.args and isinstance(call.args[0], GlobalVar)):
        return str(call.op.name).removeprefix("relax.")
    callee = call.args[0] if isinstance(call.op, Op) else call.op
    name = str(getattr(callee, "name_hint", None) or getattr(callee, "global_symbol", "call"))
    return f"tir.{name.rstrip('0123456789') or name}"


def _drop_dead(dag: nx.DiGraph, results: tuple[Value, ...]) -> None:
    """Remove the ops that no result needs."""
    live = {value.source for value in results if value.origin is Origin.OP}
    live |= {name for result in live for name in nx.ancestors(dag, result)}
    dag.remove_nodes_from([name for name in dag if name not in live])


def _main(mod: IRModule) -> Any:
    names = [gv.name_hint for gv in mod.get_global_vars()]
    if "main" not in names or not isinstance(mod["main"], relax.Function):
        raise SubtuneError(f"the module has no Relax function main (it has {', '.join(names) or 'nothing'}).")
    return mod["main"]


def _bindings(func: relax.Function) -> Iterator[Any]:
    if not isinstance(func.body, relax.SeqExpr):
        return
    for block in func.body.blocks:
        yield from block.bindings


def _node(flow: Dataflow, name: str, call: Call) -> OpNode:
    function = _callee(flow, call)
    inputs = tuple(value for arg in call.args for value in flatten(flow.values_of(arg)))
    outputs = tuple(_tensors(call.ty))
    kind = _kind(call, inputs, outputs)
    if function is not None and kind is not Kind.OPAQUE:
        kind = _kind_of_loops(int(function.attrs["op_pattern"]), outputs)
    movement = _movement(flow, call) if kind is Kind.MOVEMENT else ""
    is_read = function is not None and kind.is_injective
    reads = _reads(function, len(inputs)) if is_read else (reads_of(op_name(call)),) * len(inputs)
    return OpNode(name, op_name(call), kind, inputs, outputs, _keeps_rows(call), movement, reads)


def _kind_of_loops(pattern: int, outputs: tuple[Tensor, ...]) -> Kind:
    """Of a PrimFunc of an importer: what reduces into one output is like pooling."""
    if pattern in _REDUCING_PATTERNS and len(outputs) == 1:
        return Kind.POOLING
    return _KIND_OF_PATTERN.get(pattern, Kind.OTHER)


def _reads(function: Any, inputs: int) -> tuple[int, ...]:
    """How often a PrimFunc reads each of its inputs for an element."""
    counts = Counter(load.source for load in loads(function.body))
    return tuple(max(counts[param], 1) for param in list(function.params)[:inputs])


def _callee(flow: Dataflow, call: Call) -> Any | None:
    """The PrimFunc of a `R.call_tir`; None for a Relax op."""
    gvar = next((part for part in (call.op, *call.args) if isinstance(part, GlobalVar)), None)
    if gvar is None:
        return None
    if call.op == gvar or gvar.name_hint not in flow.functions:
        raise SubtuneError(f"main calls {gvar.name_hint}, and only ops can be partitioned: inline it first.")
    return flow.functions[gvar.name_hint]


def _prim_funcs(mod: IRModule) -> dict[str, Any]:
    found = {gvar: func for gvar, func in mod.functions_items() if isinstance(func, tvm.tirx.PrimFunc)}
    if not found:
        return {}
    annotated = relax.transform.AnnotateTIROpPattern()(IRModule(found))
    return {gvar.name_hint: func for gvar, func in annotated.functions_items()}


def _kind(call: Call, inputs: tuple[Value, ...], outputs: tuple[Tensor, ...]) -> Kind:
    if not isinstance(call.op, Op) or not outputs:
        return Kind.OPAQUE  # calls into TVM's runtime
    if any(value.tensor.dtype == SHAPE for value in inputs):
        return Kind.OPAQUE
    if not all(t.is_static and t.numel > 0 for t in (*outputs, *(value.tensor for value in inputs))):
        return Kind.OPAQUE
    op = op_name(call)
    if op.startswith("tir."):
        return Kind.OTHER
    if op in VIEWS and len(inputs) == 1:
        return Kind.VIEW
    if op == "permute_dims" and is_unit_permutation(inputs[0].tensor.shape, permutation(call)):
        return Kind.VIEW
    if is_lookup(call):
        return Kind.ELEMENTWISE
    return kind_of(op, call.op.get_attr("FLegalize") is not None)


def _keeps_rows(call: Call) -> bool:
    """True if the op permutes other axes than the last, or is a softmax along the last."""
    op = op_name(call)
    if op == "permute_dims":
        axes = permutation(call)
        return axes[-1:] == (len(axes) - 1,)
    if op in ("nn.softmax", "nn.log_softmax"):
        return int(call.attrs.axis) in (-1, int(call.args[0].ty.ndim) - 1)
    return False


def _movement(flow: Dataflow, call: Call) -> str:
    return " ".join([str(call.attrs), *(str(arg) for arg in call.args if not flatten(flow.values_of(arg)))])


def permutation(call: Call) -> tuple[int, ...]:
    """The axes of a `permute_dims`, counted from the front; without axes it reverses all."""
    rank = int(call.args[0].ty.ndim)
    if call.attrs.axes is None:
        return tuple(reversed(range(rank)))
    return tuple(int(axis) % rank for axis in call.attrs.axes)


def _outputs(node: OpNode, ty: Any) -> Resolved:
    if _is_tensor(ty):
        return Value(Origin.OP, node.name, node.outputs[0])
    if isinstance(ty, tvm.ir.TupleType):
        return tuple(Value(Origin.OP, node.name, tensor, i) for i, tensor in enumerate(node.outputs))
    return Value(Origin.OP, node.name, Tensor((), SHAPE))


def _tensors(ty: Any) -> Iterator[Tensor]:
    if _is_tensor(ty):
        yield tensor_of(ty)
    elif isinstance(ty, tvm.ir.TupleType):
        for field in ty.fields:
            if not _is_tensor(field):
                raise SubtuneError(f"an op returns {ty}, and only tuples of tensors can be partitioned.")
            yield tensor_of(field)


def _is_tensor(ty: Any) -> bool:
    return isinstance(ty, relax.TensorType)


def _input(param: Any) -> Value:
    tensor = tensor_of(param.ty) if _is_tensor(param.ty) else Tensor((), SHAPE)
    return Value(Origin.INPUT, param.name, tensor)


def _constant(resolved: Mapping[Any, Resolved], expr: Any) -> Resolved:
    return resolved.get(expr)


def _parts(expr: Any) -> tuple[Any, ...]:
    if isinstance(expr, Call):
        return tuple(expr.args)
    if isinstance(expr, relax.Tuple):
        return tuple(expr.fields)
    return ()


def _name(op: str, counts: dict[str, int]) -> str:
    short = op.rsplit(".", 1)[-1]
    counts[short] = counts.get(short, -1) + 1
    return f"{short}_{counts[short]}"
