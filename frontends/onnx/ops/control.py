"""Control flow, unrolled while importing: the branch that an If takes, or both where that is known only at run time;
Loop and Scan with a known number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx
from tvm import relax

from subtune.frontends.onnx.ops.movement import slice_axis
from subtune.frontends.onnx.ops.node import ConstantWanted, Node, axis_in, const, dtype, known_array, rank, shape

_MAX_STEPS = 256

# Imports a body with values for its inputs (in order), in the scope of the node; gives its outputs.
RunBody: TypeAlias = Callable[[onnx.GraphProto, Sequence[Any]], tuple[Any, ...]]
Control: TypeAlias = Callable[[Node, RunBody], tuple[Any, ...]]


def if_(node: Node, run: RunBody) -> tuple[Any, ...]:
    """The branch that is taken; without a known condition both are computed, as they have no effects, and selected."""
    condition = node.known(0)
    if condition is not None:
        return run(node.attr("then_branch" if condition.reshape(-1)[0] else "else_branch"), ())
    then, other = run(node.attr("then_branch"), ()), run(node.attr("else_branch"), ())
    if any(isinstance(value, tuple) for value in (*then, *other)):
        node.refuse("gives sequences by a condition that is known only at run time")
    for a, b in zip(then, other, strict=True):
        if (shape(a), dtype(a)) != (shape(b), dtype(b)):
            both = f"{dtype(a)}{list(shape(a))} and {dtype(b)}{list(shape(b))}"
            node.refuse(f"has branches that give {both}, and its condition is known only at run time")
    truth = node.emit(relax.op.reshape(node.x, ()))
    return tuple(node.emit(relax.op.where(truth, a, b)) for a, b in zip(then, other, strict=True))


def _joined(node: Node, parts: list[Any], axis: int) -> Any:
    """Stacks the values of all steps along a new axis."""
    if not parts:
        node.refuse("makes an output of no steps")
    at = axis_in(axis, rank(parts[0]) + 1)
    wide = [node.emit(relax.op.reshape(p, (*shape(p)[:at], 1, *shape(p)[at:]))) for p in parts]
    return wide[0] if len(wide) == 1 else node.emit(relax.op.concat(wide, axis=at))


def scan(node: Node, run: RunBody) -> tuple[Any, ...]:
    if node.opset < 9:
        node.refuse("of opsets before 9 is not supported")
    body = node.attr("body")
    count = node.attr("num_scan_inputs")
    states = list(node.inputs[: len(node.inputs) - count])
    scanned = [node.need(len(states) + i) for i in range(count)]
    axes = [axis_in(a, rank(x)) for a, x in zip(node.attr("scan_input_axes") or [0] * count, scanned, strict=True)]
    backwards = node.attr("scan_input_directions") or [0] * count
    steps = shape(scanned[0])[axes[0]]
    outputs = len(body.output) - len(states)
    out_axes = node.attr("scan_output_axes") or [0] * outputs
    out_backwards = node.attr("scan_output_directions") or [0] * outputs
    if not 0 < steps <= _MAX_STEPS:
        node.refuse(f"has {steps} steps, of which at most {_MAX_STEPS} are unrolled")
    collected: list[list[Any]] = [[] for _ in range(outputs)]
    for t in range(steps):
        rows = []
        for x, axis, back in zip(scanned, axes, backwards, strict=True):
            at = steps - 1 - t if back else t
            dims = tuple(d for a, d in enumerate(shape(x)) if a != axis)
            rows.append(node.emit(relax.op.reshape(slice_axis(node, x, axis, at, at + 1), dims)))
        results = run(body, (*states, *rows))
        states = list(results[: len(states)])
        for parts, value in zip(collected, results[len(states) :], strict=True):
            parts.append(value)
    joined = [
        _joined(node, parts[::-1] if back else parts, axis)
        for parts, axis, back in zip(collected, out_axes, out_backwards, strict=True)
    ]
    return (*states, *joined)


def loop(node: Node, run: RunBody) -> tuple[Any, ...]:
    """Trip count and condition have to be known before every step."""
    body = node.attr("body")
    trips = None if node.get(0) is None else node.ints(0, "its trip count")[0]
    going = node.get(1) is None or bool(node.array(1, "its condition").reshape(-1)[0])
    states = list(node.inputs[2:])
    collected: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(states))]
    t = 0
    while going and (trips is None or t < trips):
        if t == _MAX_STEPS:
            node.refuse(f"has more than {_MAX_STEPS} steps, which are not unrolled")
        condition, *results = run(body, (const(t, "int64"), const(True, "bool"), *states))
        known = known_array(condition, node.arrays)
        if known is None:
            raise ConstantWanted(condition, "its condition")
        going = bool(known.reshape(-1)[0])
        states = results[: len(states)]
        for parts, value in zip(collected, results[len(states) :], strict=True):
            parts.append(value)
        t += 1
    return (*states, *(_joined(node, parts, 0) for parts in collected))


CONTROL: dict[tuple[str, str], Control] = {("", "If"): if_, ("", "Scan"): scan, ("", "Loop"): loop}
