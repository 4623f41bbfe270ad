"""Recurrent layers, which the importer writes as functions: in main step by step, or as one call for all steps.

    y = recurrence(x, w, r, b)
->  p = reshape(matmul(x, w') + b'), y = call_dps_packed(subtune.recurrence, (p, r, ...))

The input's product stays an operator like others, one for all steps and directions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, IRModule, Op

from subtune.core.recurrence import ATTR, GATES, STATES, SYMBOL
from subtune.passes.exprs import dtype_of, is_const, make_const, shape_of
from subtune.passes.rewriter import Walk, rewrite

_FEW = 8
"""Sequences that share one reading of the weights: no other form of a step reads less."""


def settle_recurrences(mod: IRModule, whole_step_fmas: int = 0) -> IRModule:
    """Layers with so many multiply-adds of a step, or fewer, stay whole; the steps of others become part of main."""
    layers = {gvar: func for gvar, func in mod.functions_items() if func.attrs and ATTR in func.attrs}
    if not layers:
        return mod
    if whole_step_fmas:
        mod = rewrite(mod, {"": (lambda walk, call: _whole(walk, call, layers, whole_step_fmas),)})
    return relax.transform.InlinePrivateFunctions()(mod)


def is_recurrence(call: Any) -> bool:
    """Whether `call` computes a layer whole."""
    return bool(call.args) and isinstance(call.args[0], relax.ExternFunc) and call.args[0].global_symbol == SYMBOL


def recurrence_call(arguments: list[Any], attrs: Any, types: list[Any]) -> Any:
    extern = relax.ExternFunc(SYMBOL)
    return Call(
        Op.get("relax.call_dps_packed"), [extern, relax.Tuple(arguments)], attrs, [tvm.ir.TupleType(types)]
    )  # fmt: skip


def _whole(walk: Walk, call: Any, layers: Any, most_fmas: int) -> Any:
    if not isinstance(call, Call) or call.op not in layers:
        return None
    attrs = layers[call.op].attrs[ATTR]
    cell = str(attrs["cell"])
    given = {int(index): arg for index, arg in zip(attrs["inputs"], call.args, strict=True)}
    x, w, r = given[0], given[1], given[2]
    (steps, batch, _), (directions, rows, hidden), dtype = shape_of(x), shape_of(r), dtype_of(x)  # type: ignore[misc]
    if batch > _FEW and directions * rows * hidden * batch > most_fmas:
        return None
    bias = given.get(3, make_const(np.zeros((directions, 2 * rows), "float32").astype(_numpy(dtype))))
    projected = _projected(walk, x, w, _columns(bias, 0, rows))
    states = [given.get(5 + k) for k in range(STATES[cell])]
    zeros = make_const(np.zeros((directions, batch, hidden), "float32").astype(_numpy(dtype)))
    arguments = [projected, r, relax.op.astype(_columns(bias, rows, 2 * rows), "float32")]
    arguments += [zeros if state is None else state for state in states]
    if 4 in given and not _is_all(given[4], steps):
        arguments.append(relax.op.astype(given[4], "int32"))
    made = [relax.TensorType([steps, directions, batch, hidden], dtype)]
    made += [relax.TensorType([directions, batch, hidden], dtype)] * len(states)
    assert rows == GATES[cell] * hidden
    about = tvm.ir.make_node(
        "ir.DictAttrs", cell=cell, direction=str(attrs["direction"]), activations=list(attrs["activations"])
    )
    return recurrence_call([walk.emit(one) if not is_const(one) else one for one in arguments], about, made)


def _projected(walk: Walk, x: Any, w: Any, bias: Any) -> Any:
    """[steps, batch, directions * rows]: the input's product for all steps."""
    (steps, batch, width), (directions, rows, _), dtype = shape_of(x), shape_of(w), dtype_of(x)  # type: ignore[misc]
    wide = relax.op.permute_dims(relax.op.reshape(w, (directions * rows, width)))
    flat = relax.op.reshape(x, (steps * batch, width))
    product = relax.op.matmul(flat, wide, out_dtype="float32")
    product = product if dtype == "float32" else relax.op.astype(product, dtype)
    total = relax.op.add(product, relax.op.reshape(bias, (directions * rows,)))
    return walk.emit(relax.op.reshape(total, (steps, batch, directions * rows)))


def _columns(x: Any, begin: int, end: int) -> Any:
    return relax.op.strided_slice(x, [1], [begin], [end])


def _is_all(lengths: Any, steps: int) -> bool:
    return is_const(lengths) and bool((lengths.value.numpy() == steps).all())


def _numpy(dtype: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
