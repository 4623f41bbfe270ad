"""Calls of operators in `main` -> calls of kernels that are written for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Call, IRModule, Op

from subtune.backends.cuda.device import CUDAModel
from subtune.backends.cuda.operators.kernels import Written
from subtune.backends.cuda.operators.recurrent import recurrent_kernels
from subtune.backends.cuda.operators.recurrent_layer import Layer
from subtune.backends.cuda.operators.scans import Scan, scan_kernels
from subtune.backends.cuda.operators.scatters import Scattered, scatter_kernels
from subtune.backends.cuda.operators.sorting import Sorted, sorted_kernels
from subtune.core.kernel import NotApplicable
from subtune.passes.exprs import dtype_of, positive_axis, shape_of
from subtune.passes.recurrences import is_recurrence
from subtune.passes.rewriter import Walk, rewrite

_TYPES = frozenset(
    ("float16", "bfloat16", "float32", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
)


def own_operators(mod: IRModule, device: CUDAModel) -> IRModule:
    """`R.topk(x, ...)` -> `R.call_tir(topk, (x,))`, and so on; what has no kernel here stays."""
    made: dict[Any, Written] = {}
    rules = {f"relax.{name}": (partial(_replaced, made, reader, device),) for name, reader in _READERS.items()}
    out = rewrite(mod, rules)
    if not made:
        return mod
    return IRModule({**out.functions, **made}, out.attrs, out.global_infos)


def _replaced(made: dict[Any, Written], reader: Any, device: CUDAModel, walk: Walk, call: Call) -> Any:
    if any(dtype_of(arg) and (shape_of(arg) is None or not prod(shape_of(arg) or ())) for arg in call.args):
        return None
    found = reader(call, device)
    if found is None or isinstance(found, NotApplicable):
        return None
    func, args, form = found
    name = f"{str(call.op.name).removeprefix('relax.')}_{len(made)}"
    gvar = relax.BlockBuilder().add_func(func, name)
    made[gvar] = func
    shapes = [relax.TensorType([int(d) for d in p.shape], str(p.dtype)) for p in func.params[len(args) :]]
    flat = [
        walk.emit(relax.op.reshape(arg, [int(d) for d in p.shape])) for arg, p in zip(args, func.params, strict=False)
    ]
    out_type = shapes[0] if len(shapes) == 1 else tvm.ir.TupleType(shapes)
    result = walk.emit(Call(Op.get("relax.call_tir"), [gvar, relax.Tuple(flat)], None, [out_type]))
    return form(result)


_Read = Callable[[Call, CUDAModel], Any]


def _lines(x: Any, axis: int) -> tuple[int, int, int]:
    """[outer, length, inner] of a tensor whose axis is `axis`."""
    dims = shape_of(x)
    assert dims is not None
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


def _reshaped(call: Call) -> Callable[[Any], Any]:
    """What becomes of the kernels' result: the shapes of the operator's."""
    types = call.ty.fields if isinstance(call.ty, tvm.ir.TupleType) else [call.ty]
    shapes = [[int(d) for d in ty.shape.values] for ty in types]
    if not isinstance(call.ty, tvm.ir.TupleType):
        return lambda result: relax.op.reshape(result, shapes[0])
    return lambda result: relax.Tuple(
        [relax.op.reshape(relax.TupleGetItem(result, i), shape) for i, shape in enumerate(shapes)]
    )


def _top_k(call: Call, device: CUDAModel) -> Any:
    attrs, x = call.attrs, call.args[0]
    wanted = {"both": ("values", "places"), "values": ("values",), "indices": ("places",)}[str(attrs.ret_type)]
    return _sorted(call, device, int(attrs.axis), int(attrs.k), bool(attrs.largest), wanted, str(attrs.dtype), x)


def _sort(call: Call, device: CUDAModel) -> Any:
    attrs, x = call.attrs, call.args[0]
    return _sorted(call, device, int(attrs.axis), 0, bool(attrs.descending), ("values",), "int32", x)


def _arg_sort(call: Call, device: CUDAModel) -> Any:
    attrs, x = call.attrs, call.args[0]
    return _sorted(call, device, int(attrs.axis), 0, bool(attrs.descending), ("places",), str(attrs.dtype), x)


def _sorted(
    call: Call, device: CUDAModel, axis: int, count: int, largest: bool, wanted: tuple[str, ...], places: str, x: Any
) -> Any:
    if dtype_of(x) not in _TYPES or places not in ("int32", "int64"):
        return None
    outer, length, inner = _lines(x, positive_axis(axis, len(shape_of(x) or ())))
    op = Sorted(dtype_of(x), outer, length, inner, count or length, largest, wanted, places)
    func = sorted_kernels(op, device)
    return func if isinstance(func, NotApplicable) else (func, [x], _reshaped(call))


def _scan(is_product: bool, call: Call, device: CUDAModel) -> Any:
    attrs, x = call.attrs, call.args[0]
    if attrs.axis is None or dtype_of(x) not in _TYPES or dtype_of(call) not in _TYPES:
        return None
    lines = _lines(x, positive_axis(int(attrs.axis), len(shape_of(x) or ())))
    op = Scan(dtype_of(x), dtype_of(call), *lines, is_product, bool(attrs.exclusive))
    return scan_kernels(op, device), [x], _reshaped(call)


def _scatter(is_nd: bool, call: Call, device: CUDAModel) -> Any:
    x, indices, updates = call.args
    shapes = [shape_of(arg) or () for arg in (x, indices, updates)]
    axis = None if is_nd else positive_axis(int(call.attrs.axis), len(shapes[0]))
    op = Scattered(dtype_of(x), shapes[0], dtype_of(indices), shapes[1], shapes[2], axis, str(call.attrs.reduction))
    func = scatter_kernels(op)
    return func if isinstance(func, NotApplicable) else (func, [x, indices, updates], lambda result: result)


def _recurrent(call: Call, device: CUDAModel) -> Any:
    if not is_recurrence(call):
        return None
    attrs, args = call.attrs, list(call.args[1].fields)
    activations = tuple(str(name) for name in attrs["activations"])
    given = tuple((shape_of(arg) or (), dtype_of(arg)) for arg in args)
    y, *_ = ([int(d) for d in ty.shape.values] for ty in call.ty.fields)
    layer = Layer(str(attrs["cell"]), str(attrs["direction"]), activations, given, (tuple(y), dtype_of(args[1])))
    return recurrent_kernels(layer, device), args, _reshaped(call)


_READERS: dict[str, _Read] = {
    "topk": _top_k,
    "sort": _sort,
    "argsort": _arg_sort,
    "cumsum": partial(_scan, False),
    "cumprod": partial(_scan, True),
    "scatter_elements": partial(_scatter, False),
    "scatter_nd": partial(_scatter, True),
    "call_dps_packed": _recurrent,
}
