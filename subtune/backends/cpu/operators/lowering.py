"""Calls of operators in `main` -> calls of functions that are written for them."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Call, IRModule, Op, TensorLoad

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.operators.sorting import KEYS, Computed, Sorted, sorted_function
from subtune.passes.exprs import dtype_of, op_name, positive_axis, shape_of
from subtune.passes.rewriter import Walk, rewrite
from subtune.tir.blocks import is_reduction, root_stages, stage_block
from subtune.tir.expressions import is_load_of, is_same, loads, variables


def own_operators(mod: IRModule, device: CPUModel) -> IRModule:
    """`R.topk(x, ...)` -> `R.call_tir(topk, (x,))`, and so on; what has no function here stays."""
    made: dict[Any, Any] = {}
    rules = {f"relax.{name}": (partial(_replaced, made, mod, device),) for name in ("topk", "sort", "argsort")}
    out = rewrite(mod, rules)
    if not made:
        return mod
    out = IRModule({**out.functions, **made}, out.attrs, out.global_infos)
    return relax.transform.DeadCodeElimination()(out)  # loops that are computed where they were read


def _replaced(made: dict[Any, Any], mod: IRModule, device: CPUModel, walk: Walk, call: Call) -> Any:
    x, computed = _computed_from(mod, walk, call.args[0])
    found = _read(call, dtype_of(x), computed)
    if found is None:
        return None
    func = sorted_function(found, device)
    gvar = relax.BlockBuilder().add_func(func, f"{str(call.op.name).removeprefix('relax.')}_{len(made)}")
    made[gvar] = func
    source, *outputs = ([int(d) for d in param.shape] for param in func.params)
    types = [relax.TensorType(s, str(param.dtype)) for s, param in zip(outputs, func.params[1:], strict=True)]
    out_type = types[0] if len(types) == 1 else tvm.ir.TupleType(types)
    given = relax.Tuple([walk.emit(relax.op.reshape(x, source))])
    return _shaped(call, walk.emit(Call(Op.get("relax.call_tir"), [gvar, given], None, [out_type])))


def _shaped(call: Call, result: Any) -> Any:
    """The function's result in the operator's shapes."""
    if not isinstance(call.ty, tvm.ir.TupleType):
        return relax.op.reshape(result, [int(d) for d in call.ty.shape.values])
    shapes = [[int(d) for d in ty.shape.values] for ty in call.ty.fields]
    return relax.Tuple([relax.op.reshape(relax.TupleGetItem(result, i), shape) for i, shape in enumerate(shapes)])


def _computed_from(mod: IRModule, walk: Walk, x: Any) -> tuple[Any, Computed]:
    """What a sort is to read in place of `x`, and what it makes of each element: see `Forms.sorts_computed`."""
    computed: Computed = lambda element: element  # noqa: E731
    while (found := _unary(mod, walk.definition(x))) is not None and walk.has_one_use(x):
        x, computed = found[0], partial(_both, found[1], computed)
    return x, computed


def _both(first: Computed, then: Computed, element: Any) -> Any:
    return then(first(element))


def _unary(mod: IRModule, value: Any) -> tuple[Any, Computed] | None:
    """The operand of an operator that makes each element from the one in its place, and how; None of others."""
    if op_name(value) == "relax.astype":
        return value.args[0], partial(tirx.Cast, dtype_of(value))
    if op_name(value) != "relax.call_tir" or len(value.args[1].fields) != 1:
        return None
    func = mod[value.args[0]]
    stages = root_stages(func)
    block = stage_block(stages[0])
    store, places = block.body, [iv.var for iv in block.iter_vars]
    if len(stages) > 1 or not isinstance(store, tirx.BufferStore) or is_reduction(block):
        return None
    read = loads(store.value)
    reads_alike = all(load.source.same_as(func.params[0]) and is_same(load.indices, places) for load in read)
    if not read or not reads_alike or not is_same(store.indices, places):
        return None
    computed = partial(_in_place_of, func.params[0], store.value)
    knows_place = variables(computed(tirx.const(0, str(func.params[0].dtype)))) & set(places)
    return None if knows_place else (value.args[1].fields[0], computed)


def _in_place_of(source: Any, value: Any, element: Any) -> Any:
    return tvm_ffi.structural_map(value, (TensorLoad, lambda load: element if is_load_of(load, source) else load))


def _read(call: Call, given_dtype: str, computed: Computed) -> Sorted | None:
    x, attrs, name = call.args[0], call.attrs, str(call.op.name)
    dims = shape_of(x)
    if dims is None or not prod(dims) or dtype_of(x) not in KEYS:
        return None
    axis = positive_axis(int(attrs.axis), len(dims))
    places, count = "int32", dims[axis]
    outputs: tuple[str, ...] = ("values",)
    if name != "relax.sort":
        places = str(attrs.dtype)
        outputs = ("places",)
    if name == "relax.topk":
        outputs = {"both": ("values", "places"), "values": ("values",), "indices": ("places",)}[str(attrs.ret_type)]
        count = int(attrs.k) if int(attrs.k) > 0 else dims[axis]
    if places not in ("int32", "int64"):
        return None
    largest = bool(attrs.largest if name == "relax.topk" else attrs.descending)
    shape = (prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :]))
    return Sorted(dtype_of(x), shape, count, largest, outputs, places, given_dtype, computed)
