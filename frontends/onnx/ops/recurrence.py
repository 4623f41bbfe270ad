"""A recurrent operator's steps as a function of their own, so that a device may compute them in a kernel of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.ir import Call

from subtune.core.recurrence import ACTIVATIONS, ATTR
from subtune.frontends.onnx.ops.node import Expr, Node, dtype, known_array, shape

_DTYPES = ("float16", "bfloat16", "float32")


def whole(node: Node, defaults: list[str], unrolled: Callable[[Node], tuple[Expr, ...]]) -> tuple[Expr, ...] | None:
    """The results of a call of a function that computes `unrolled`; None for what must be unrolled everywhere.

    The function's parameters are the inputs that the node has; its attribute `ATTR` says which, and what is computed.

    Args:
        node: with time as the first axis of its input, directions that of its states.
        defaults: the activations of a direction where the node names none.
    """
    directions = 2 if node.attr("direction", "forward") == "bidirectional" else 1
    activations = [name.lower() for name in node.attr("activations") or defaults * directions]
    if not set(activations) <= set(ACTIVATIONS) or activations != activations[: len(defaults)] * directions:
        return None
    if node.op == "GRU" and not node.attr("linear_before_reset", 0):
        return None
    if node.get(7) is not None or dtype(node.x) not in _DTYPES or 0 in (*shape(node.x), *shape(node.need(2))):
        return None
    given = [index for index in range(len(node.inputs)) if node.get(index) is not None]
    params = {index: relax.Var(f"p{index}", node.inputs[index].ty) for index in given}
    function = _function(node, params, unrolled).with_attr(ATTR, {
        "cell": node.op, "direction": node.attr("direction", "forward"),
        "activations": activations[: len(defaults)], "inputs": given,
    })  # fmt: skip
    call = node.emit(Call(node.bb.add_func(function, "recurrence"), [node.inputs[index] for index in given]))
    return tuple(node.emit(relax.TupleGetItem(call, i)) for i in range(len(call.ty.fields)))


def _function(node: Node, params: dict[int, Any], unrolled: Callable[[Node], tuple[Expr, ...]]) -> Any:
    bb = relax.BlockBuilder()
    arrays = {
        var: known for i, var in params.items() if (known := known_array(node.inputs[i], node.arrays)) is not None
    }
    inputs = tuple(params.get(index) for index in range(len(node.inputs)))
    with bb.function("recurrence", list(params.values()), private=True):
        with bb.dataflow():
            results = unrolled(replace(node, bb=bb, inputs=inputs, arrays=arrays))
            output = bb.emit_output(relax.Tuple([bb.emit(result) for result in results]))
        bb.emit_func_output(output)
    return bb.get()["recurrence"]
