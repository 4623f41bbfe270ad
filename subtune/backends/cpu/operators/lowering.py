"""Calls of operators in `main` -> calls of functions that are written for them."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, IRModule, Op

from subtune.backends.cpu.device import CPUModel
from subtune.backends.cpu.operators.sorting import KEYS, Sorted, sorted_function
from subtune.passes.exprs import dtype_of, positive_axis, shape_of
from subtune.passes.rewriter import Walk, rewrite


def own_operators(mod: IRModule, device: CPUModel) -> IRModule:
    """`R.topk(x, ...)` -> `R.call_tir(topk, (x,))`, and so on; what has no function here stays."""
    made: dict[Any, Any] = {}
    rules = {f"relax.{name}": (partial(_replaced, made, device),) for name in ("topk", "sort", "argsort")}
    out = rewrite(mod, rules)
    return IRModule({**out.functions, **made}, out.attrs, out.global_infos) if made else mod


def _replaced(made: dict[Any, Any], device: CPUModel, walk: Walk, call: Call) -> Any:
    found = _read(call)
    if found is None:
        return None
    func = sorted_function(found, device)
    gvar = relax.BlockBuilder().add_func(func, f"{str(call.op.name).removeprefix('relax.')}_{len(made)}")
    made[gvar] = func
    source, *outputs = ([int(d) for d in param.shape] for param in func.params)
    types = [relax.TensorType(s, str(param.dtype)) for s, param in zip(outputs, func.params[1:], strict=True)]
    out_type = types[0] if len(types) == 1 else tvm.ir.TupleType(types)
    given = relax.Tuple([walk.emit(relax.op.reshape(call.args[0], source))])
    return _shaped(call, walk.emit(Call(Op.get("relax.call_tir"), [gvar, given], None, [out_type])))


def _shaped(call: Call, result: Any) -> Any:
    """The function's result in the operator's shapes."""
    if not isinstance(call.ty, tvm.ir.TupleType):
        return relax.op.reshape(result, [int(d) for d in call.ty.shape.values])
    shapes = [[int(d) for d in ty.shape.values] for ty in call.ty.fields]
    return relax.Tuple([relax.op.reshape(relax.TupleGetItem(result, i), shape) for i, shape in enumerate(shapes)])


def _read(call: Call) -> Sorted | None:
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
    return Sorted(dtype_of(x), shape, count, largest, outputs, places)
